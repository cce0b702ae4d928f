// Kernels of two operands: arithmetic, fused backwards, comparisons, where.
#include "weft/core/kernels/elementwise.h"
#include "weft/core/kernels/elementwise_ops.h"
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

template <CompareOp op, class T>
struct Compare {
  __device__ bool operator()(T a, T b) const {
    using C = Compute<T>;
    return holds<op, C>(static_cast<C>(a), static_cast<C>(b));
  }
};

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

}  // namespace

void binary(const Tensor& a, const Tensor& b, BinaryOp runtime_op, const Tensor& out) {
  with_op(runtime_op, [&]<BinaryOp op>() {
    with_dtype<op>(out.dtype(), [&]<class T>() { map<T, T, T>(out, Binary<op, T>{}, a, b); });
  });
}

void binary_scalar(const Tensor& a, double value, BinaryOp runtime_op, bool reversed,
                   const Tensor& out) {
  UnaryOp simpler;
  if (simpler_power(runtime_op, value, reversed, simpler)) return unary(a, simpler, out);
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
    const auto v = comparable<T>(value);
    with_op(runtime_op, [&]<CompareOp op>() { map<bool, T>(out, CompareNumber<op, T>{v}, a); });
  });
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  with_word(size_of(out.dtype()),
            [&]<class Word>() { map<Word, bool, Word, Word>(out, Where{}, condition, a, b); });
}

}  // namespace weft::cuda
