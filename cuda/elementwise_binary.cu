// Kernels of two operands: arithmetic, fused backwards, comparisons, where.
#include "weft/core/kernels/elementwise.h"
#include "weft/core/kernels/elementwise_math.h"
#include "weft/cuda/strided.h"

namespace weft::cuda {
namespace {

template <BinaryOp op, class T>
struct Binary {
  __device__ T operator()(T a, T b) const {
    using C = Compute<T>;
    return T(apply<op, C>(static_cast<C>(a), static_cast<C>(b)));
  }
};

// The number stays in the computing type: a bf16 tensor times 0.1 does not round 0.1 to bf16.
template <BinaryOp op, bool reversed, class T>
struct WithNumber {
  Compute<T> value;
  __device__ T operator()(T a) const {
    using C = Compute<T>;
    if constexpr (reversed)
      return T(apply<op, C>(value, static_cast<C>(a)));
    else
      return T(apply<op, C>(static_cast<C>(a), value));
  }
};

template <CompareOp op, class C>
__device__ bool holds(C a, C b) {
  if constexpr (op == CompareOp::eq)
    return a == b;
  else if constexpr (op == CompareOp::ne)
    return a != b;
  else if constexpr (op == CompareOp::lt)
    return a < b;
  else if constexpr (op == CompareOp::le)
    return a <= b;
  else if constexpr (op == CompareOp::gt)
    return a > b;
  else
    return a >= b;
}

template <CompareOp op, class T>
struct Compare {
  __device__ bool operator()(T a, T b) const {
    using C = Compute<T>;
    return holds<op, C>(static_cast<C>(a), static_cast<C>(b));
  }
};

// A float meets the number as its own type would store it; an integer meets 2.5 as 2.5.
template <class T>
using Comparable = std::conditional_t<std::is_integral_v<T>, double, Compute<T>>;

template <CompareOp op, class T>
struct CompareNumber {
  Comparable<T> value;
  __device__ bool operator()(T a) const {
    return holds<op, Comparable<T>>(static_cast<Comparable<T>>(a), value);
  }
};

struct Where {
  template <class T>
  __device__ T operator()(bool condition, T a, T b) const {
    return condition ? a : b;
  }
};

// Calls f.operator()<op>() for the op given at run time.
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

// Calls f.operator()<T>() for the dtypes that the op has.
template <BinaryOp op, class F>
void with_dtype(DType dtype, F&& f) {
  if constexpr (takes_integers(op))
    dispatch_numeric(dtype, f);
  else
    dispatch_floating(dtype, f);
}

// Comparisons take bool too, which no arithmetic does.
template <class F>
void with_comparable(DType dtype, F&& f) {
  if (dtype == DType::boolean) return f.template operator()<bool>();
  dispatch_numeric(dtype, f);
}

template <class Word>
void where_words(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  map<Word, bool, Word, Word>(out, Where{}, condition, a, b);
}

}  // namespace

void binary(const Tensor& a, const Tensor& b, BinaryOp runtime_op, const Tensor& out) {
  with_op(runtime_op, [&]<BinaryOp op>() {
    with_dtype<op>(out.dtype(), [&]<class T>() { map<T, T, T>(out, Binary<op, T>{}, a, b); });
  });
}

void binary_scalar(const Tensor& a, double value, BinaryOp runtime_op, bool reversed,
                   const Tensor& out) {
  if (runtime_op == BinaryOp::pow && !reversed) {  // powers with a cheaper formula
    if (value == 2) return unary(a, UnaryOp::square, out);
    if (value == 0.5) return unary(a, UnaryOp::sqrt, out);
    if (value == -0.5) return unary(a, UnaryOp::rsqrt, out);
  }
  with_op(runtime_op, [&]<BinaryOp op>() {
    if constexpr (op >= BinaryOp::relu_bwd)
      return;  // no op has a number for a gradient
    else
      with_dtype<op>(out.dtype(), [&]<class T>() {
        const auto v = number<op, Compute<T>>(value);
        if constexpr (op == BinaryOp::sub || op == BinaryOp::div || op == BinaryOp::pow)
          if (reversed) return map<T, T>(out, WithNumber<op, true, T>{v}, a);
        map<T, T>(out, WithNumber<op, false, T>{v}, a);
      });
  });
}

void compare(const Tensor& a, const Tensor& b, CompareOp runtime_op, const Tensor& out) {
  with_comparable(a.dtype(), [&]<class T>() {
    with_op(runtime_op, [&]<CompareOp op>() { map<bool, T, T>(out, Compare<op, T>{}, a, b); });
  });
}

void compare_scalar(const Tensor& a, double value, CompareOp runtime_op, const Tensor& out) {
  with_comparable(a.dtype(), [&]<class T>() {
    auto v = static_cast<Comparable<T>>(value);
    if constexpr (!std::is_integral_v<T>) v = static_cast<Comparable<T>>(T(v));
    with_op(runtime_op, [&]<CompareOp op>() { map<bool, T>(out, CompareNumber<op, T>{v}, a); });
  });
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  // Values are only moved, so their width is all that matters.
  switch (size_of(out.dtype())) {
    case 1:
      return where_words<std::uint8_t>(condition, a, b, out);
    case 2:
      return where_words<std::uint16_t>(condition, a, b, out);
    case 4:
      return where_words<std::uint32_t>(condition, a, b, out);
    default:
      return where_words<std::uint64_t>(condition, a, b, out);
  }
}

}  // namespace weft::cuda
