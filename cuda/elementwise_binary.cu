// Kernels of two operands: arithmetic, fused backward ops, comparisons, where.
#include "weft/core/kernels/elementwise.h"
#include "weft/core/kernels/elementwise_ops.h"
#include "weft/cuda/gelu.h"
#include "weft/cuda/strided.h"

namespace weft::cuda {
namespace {

template <BinaryOp op, class T>
struct Binary {
  __device__ T operator()(T a, T b) const {
    using C = Compute<T>;
    if constexpr (op == BinaryOp::gelu_tanh_bwd)
      return narrow<T>(gelu_tanh_bwd<C>(widen(a), widen(b)));
    else
      return narrow<T>(apply<op, C>(widen(a), widen(b)));
  }
};

template <class T>
struct AnyBinary {
  BinaryOp op;
  __device__ Compute<T> apply_to(Compute<T> a, Compute<T> b) const {
    Compute<T> y{};
    with_running_op(op, [&]<BinaryOp known>() {
      if constexpr (!std::is_integral_v<T> || takes_integers(known))
        y = apply<known, Compute<T>>(a, b);
    });
    return y;
  }
  __device__ T operator()(T a, T b) const { return narrow<T>(apply_to(widen(a), widen(b))); }
};

// The number stays in the compute type: bf16 times 0.1 does not round 0.1 to bf16.
template <BinaryOp op, bool reversed, class T>
struct WithNumber {
  Compute<T> value;
  __device__ T operator()(T a) const {
    using C = Compute<T>;
    if constexpr (reversed)
      return narrow<T>(apply<op, C>(value, widen(a)));
    else
      return narrow<T>(apply<op, C>(widen(a), value));
  }
};

template <class T>
struct AnyWithNumber {
  BinaryOp op;
  bool reversed;
  Compute<T> value;
  __device__ T operator()(T a) const {
    const auto x = static_cast<Compute<T>>(a);
    return narrow<T>(AnyBinary<T>{op}.apply_to(reversed ? value : x, reversed ? x : value));
  }
};

// The relations of two numbers as bits: less, equal, greater, unordered (NaN). An op is the set of
// relations that it accepts, so that one kernel serves all comparisons.
unsigned accepted(CompareOp op) {
  switch (op) {
    case CompareOp::eq:
      return 2;
    case CompareOp::ne:
      return 1 | 4 | 8;
    case CompareOp::lt:
      return 1;
    case CompareOp::le:
      return 1 | 2;
    case CompareOp::gt:
      return 4;
    default:
      return 2 | 4;  // ge
  }
}

template <class C>
__device__ inline bool accepts(unsigned accepted, C a, C b) {
  return accepted & (a < b ? 1u : a == b ? 2u : a > b ? 4u : 8u);
}

template <class T>
struct Compare {
  unsigned accepted;
  __device__ bool operator()(T a, T b) const {
    return accepts<Compute<T>>(accepted, static_cast<Compute<T>>(a), static_cast<Compute<T>>(b));
  }
};

template <class T>
struct CompareNumber {
  unsigned accepted;
  Compute<T> value;
  __device__ bool operator()(T a) const {
    return accepts<Compute<T>>(accepted, static_cast<Compute<T>>(a), value);
  }
};

// A bool is 0 or 1 and is compared as such.
template <class T>
using Compared = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

struct Where {
  template <class T>
  __device__ T operator()(bool condition, T a, T b) const {
    return condition ? a : b;
  }
};

}  // namespace

void binary(const Tensor& a, const Tensor& b, BinaryOp op, const Tensor& out) {
  bool done = false;
  with_op(every<BinaryOp>, op, [&]<BinaryOp known>() {
    // A dense kernel for every op, and a strided kernel only for ops that models use with broadcast
    // operands. Slow ops hide the index arithmetic.
    constexpr bool often = known == BinaryOp::add || known == BinaryOp::sub ||
                           known == BinaryOp::mul || known == BinaryOp::div;
    if constexpr (!is_slow(known))
      done = try_dense(out.dtype(), [&]<class T>() {
        const Binary<known, T> f;
        if (map_dense<T, T, T>(out, f, a, b)) return true;
        if constexpr (often) map_strided<T, T, T>(out, f, a, b);
        return often;
      });
  });
  if (done) return;
  const auto any = [&]<class T>() { map_strided<T, T, T>(out, AnyBinary<T>{op}, a, b); };
  takes_integers(op) ? dispatch_numeric(out.dtype(), any) : dispatch_floating(out.dtype(), any);
}

void binary_scalar(const Tensor& a, double value, BinaryOp op, bool reversed, const Tensor& out) {
  UnaryOp simpler;
  if (simpler_power(op, value, reversed, simpler)) return unary(a, simpler, out);
  with_op(every<BinaryOp>, op, out.dtype(), [&]<BinaryOp known, class T>() {
    if constexpr (known < BinaryOp::relu_bwd) {  // no op has a gradient for a number
      constexpr bool turns =
          known == BinaryOp::sub || known == BinaryOp::div || known == BinaryOp::pow;
      const auto v = number<known, Compute<T>>(value);
      if constexpr (kHasDense<T> && !is_slow(known)) {
        if (turns && reversed ? map_dense<T, T>(out, WithNumber<known, turns, T>{v}, a)
                              : map_dense<T, T>(out, WithNumber<known, false, T>{v}, a))
          return;
      }
      map_strided<T, T>(out, AnyWithNumber<T>{known, turns && reversed, v}, a);
    }
  });
}

void compare(const Tensor& a, const Tensor& b, CompareOp op, const Tensor& out) {
  with_comparable(a.dtype(), [&]<class Stored>() {
    using T = Compared<Stored>;
    const Compare<T> f{accepted(op)};
    if constexpr (kHasDense<T>)
      map<bool, T, T>(out, f, a, b);
    else
      map_strided<bool, T, T>(out, f, a, b);
  });
}

void compare_scalar(const Tensor& a, double value, CompareOp op, const Tensor& out) {
  with_comparable(a.dtype(), [&]<class Stored>() {
    using T = Compared<Stored>;
    const NumberComparison<T> to = comparison<T>(op, value);
    const CompareNumber<T> f{accepted(to.op), to.value};
    if constexpr (kHasDense<T>)
      map<bool, T>(out, f, a);
    else
      map_strided<bool, T>(out, f, a);
  });
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  with_word(size_of(out.dtype()),
            [&]<class Word>() { map<Word, bool, Word, Word>(out, Where{}, condition, a, b); });
}

}  // namespace weft::cuda
