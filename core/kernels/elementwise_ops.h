#pragma once
#include <utility>

#include "weft/core/kernels/elementwise.h"
#include "weft/core/kernels/elementwise_math.h"

/// Maps the runtime op and dtype to template arguments, for CPU and CUDA kernels.
namespace weft {

/// Every op of an enumeration: what with_op() chooses from.
template <class Op>
inline constexpr std::make_integer_sequence<int, static_cast<int>(Op::count)> every{};

/// Calls f.operator()<op>() with an op that is known only at run time.
template <class Op, int... I, class F>
void with_op(std::integer_sequence<int, I...>, Op op, F&& f) {
  (void)((op == Op(I) && (f.template operator()<Op(I)>(), true)) || ...);
}

/// Calls f.operator()<op, T>() for the dtypes that the op supports.
template <auto op, class F>
void with_dtype(DType dtype, F&& f) {
  const auto with = [&]<class T>() { f.template operator()<op, T>(); };
  if constexpr (takes_integers(op))
    dispatch_numeric(dtype, with);
  else
    dispatch_floating(dtype, with);
}

/// Calls f.operator()<op, T>() with an op and a dtype that are known only at run time.
template <class Op, int... I, class F>
void with_op(std::integer_sequence<int, I...>, Op op, DType dtype, F&& f) {
  (void)((op == Op(I) && (with_dtype<Op(I)>(dtype, f), true)) || ...);
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
