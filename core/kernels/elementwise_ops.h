#pragma once
#include "weft/core/kernels/elementwise.h"
#include "weft/core/kernels/elementwise_math.h"

/// Maps the runtime op and dtype to template arguments, for CPU and CUDA kernels.
namespace weft {

/// Calls f.operator()<op>().
template <class F>
void with_op(UnaryOp op, F&& f) {
  switch (op) {
    case UnaryOp::neg:
      return f.template operator()<UnaryOp::neg>();
    case UnaryOp::exp:
      return f.template operator()<UnaryOp::exp>();
    case UnaryOp::log:
      return f.template operator()<UnaryOp::log>();
    case UnaryOp::sqrt:
      return f.template operator()<UnaryOp::sqrt>();
    case UnaryOp::rsqrt:
      return f.template operator()<UnaryOp::rsqrt>();
    case UnaryOp::abs:
      return f.template operator()<UnaryOp::abs>();
    case UnaryOp::tanh:
      return f.template operator()<UnaryOp::tanh>();
    case UnaryOp::sigmoid:
      return f.template operator()<UnaryOp::sigmoid>();
    case UnaryOp::relu:
      return f.template operator()<UnaryOp::relu>();
    case UnaryOp::gelu_tanh:
      return f.template operator()<UnaryOp::gelu_tanh>();
    case UnaryOp::gelu_erf:
      return f.template operator()<UnaryOp::gelu_erf>();
    case UnaryOp::silu:
      return f.template operator()<UnaryOp::silu>();
    case UnaryOp::softplus:
      return f.template operator()<UnaryOp::softplus>();
    case UnaryOp::square:
      return f.template operator()<UnaryOp::square>();
    case UnaryOp::sign:
      return f.template operator()<UnaryOp::sign>();
  }
}

template <class F>
void with_op(BinaryOp op, F&& f) {
  switch (op) {
    case BinaryOp::add:
      return f.template operator()<BinaryOp::add>();
    case BinaryOp::sub:
      return f.template operator()<BinaryOp::sub>();
    case BinaryOp::mul:
      return f.template operator()<BinaryOp::mul>();
    case BinaryOp::div:
      return f.template operator()<BinaryOp::div>();
    case BinaryOp::pow:
      return f.template operator()<BinaryOp::pow>();
    case BinaryOp::minimum:
      return f.template operator()<BinaryOp::minimum>();
    case BinaryOp::maximum:
      return f.template operator()<BinaryOp::maximum>();
    case BinaryOp::relu_bwd:
      return f.template operator()<BinaryOp::relu_bwd>();
    case BinaryOp::tanh_bwd:
      return f.template operator()<BinaryOp::tanh_bwd>();
    case BinaryOp::sigmoid_bwd:
      return f.template operator()<BinaryOp::sigmoid_bwd>();
    case BinaryOp::gelu_tanh_bwd:
      return f.template operator()<BinaryOp::gelu_tanh_bwd>();
    case BinaryOp::gelu_erf_bwd:
      return f.template operator()<BinaryOp::gelu_erf_bwd>();
    case BinaryOp::silu_bwd:
      return f.template operator()<BinaryOp::silu_bwd>();
  }
}

template <class F>
void with_op(CompareOp op, F&& f) {
  switch (op) {
    case CompareOp::eq:
      return f.template operator()<CompareOp::eq>();
    case CompareOp::ne:
      return f.template operator()<CompareOp::ne>();
    case CompareOp::lt:
      return f.template operator()<CompareOp::lt>();
    case CompareOp::le:
      return f.template operator()<CompareOp::le>();
    case CompareOp::gt:
      return f.template operator()<CompareOp::gt>();
    case CompareOp::ge:
      return f.template operator()<CompareOp::ge>();
  }
}

/// Calls f.operator()<T>() for the dtypes that the op supports.
template <auto op, class F>
void with_dtype(DType dtype, F&& f) {
  if constexpr (takes_integers(op))
    dispatch_numeric(dtype, f);
  else
    dispatch_floating(dtype, f);
}

/// Comparisons also support bool, unlike arithmetic.
template <class F>
void with_comparable(DType dtype, F&& f) {
  if (dtype == DType::boolean) return f.template operator()<bool>();
  dispatch_numeric(dtype, f);
}

/// Calls f.operator()<Word>() with an unsigned type of this many bytes, for values that are only
/// copied.
template <class F>
void with_word(std::size_t bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f.template operator()<std::uint8_t>();
    case 2:
      return f.template operator()<std::uint16_t>();
    case 4:
      return f.template operator()<std::uint32_t>();
    default:
      return f.template operator()<std::uint64_t>();
  }
}

/// Replaces a power that has a cheaper formula by the unary op with that formula.
inline bool simpler_power(BinaryOp op, double exponent, bool reversed, UnaryOp& simpler) {
  if (op != BinaryOp::pow || reversed) return false;
  if (exponent == 2) simpler = UnaryOp::square;
  if (exponent == 0.5) simpler = UnaryOp::sqrt;
  if (exponent == -0.5) simpler = UnaryOp::rsqrt;
  return exponent == 2 || exponent == 0.5 || exponent == -0.5;
}

}  // namespace weft
