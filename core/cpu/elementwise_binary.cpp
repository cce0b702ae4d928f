// Kernels of two operands: arithmetic, fused backward ops, comparisons, where.
#include "weft/core/cpu/elementwise_loop.h"
#include "weft/core/cpu/elementwise_simd.h"
#include "weft/core/kernels/elementwise_ops.h"

namespace weft::cpu {
namespace {

// The three important layouts get loops that the compiler can vectorise: both operands in step, and
// either one fixed (a scalar or a broadcast column).
template <class A, class B, class O, class F>
void binary_row(const A* a, std::int64_t sa, const B* b, std::int64_t sb, O* o, std::int64_t so,
                std::int64_t n, F f) {
  if (so == 1 && sa == 1 && sb == 1) {
    for (std::int64_t i = 0; i < n; ++i) o[i] = O(f(a[i], b[i]));
  } else if (so == 1 && sa == 1 && sb == 0) {
    const B fixed = *b;
    for (std::int64_t i = 0; i < n; ++i) o[i] = O(f(a[i], fixed));
  } else if (so == 1 && sa == 0 && sb == 1) {
    const A fixed = *a;
    for (std::int64_t i = 0; i < n; ++i) o[i] = O(f(fixed, b[i]));
  } else {
    for (std::int64_t i = 0; i < n; ++i) o[i * so] = O(f(a[i * sa], b[i * sb]));
  }
}

// Dense f32, bf16 and f16 fused backward ops use row kernels; this loop serves the rest.
template <class T, class F>
void backward_typed(const Tensor& a, const Tensor& b, const Tensor& out, std::int64_t work, F f) {
  const T *pa = a.data<T>(), *pb = b.data<T>();
  T* po = out.data<T>();
  each_run<3>({&a, &b, &out}, work,
              [=](const PerOperand<3>& at, const PerOperand<3>& step, std::int64_t n) {
                const T *x = pa + at[0], *y = pb + at[1];
                T* o = po + at[2];
                for (std::int64_t i = 0; i < n; ++i)
                  o[i * step[2]] = T(f(x[i * step[0]], y[i * step[1]]));
              });
}

template <class T, class O, class F>
void binary_typed(const Tensor& a, const Tensor& b, const Tensor& out, std::int64_t work, F f) {
  const T *pa = a.data<T>(), *pb = b.data<T>();
  O* po = out.data<O>();
  each_run<3>({&a, &b, &out}, work,
              [=](const PerOperand<3>& at, const PerOperand<3>& step, std::int64_t n) {
                binary_row(pa + at[0], step[0], pb + at[1], step[1], po + at[2], step[2], n, f);
              });
}

// The number stays in the compute type: bf16 times 0.1 does not round 0.1 to bf16.
template <class T, class O, class S, class F>
void scalar_typed(const Tensor& a, S value, const Tensor& out, std::int64_t work, F f) {
  const T* pa = a.data<T>();
  O* po = out.data<O>();
  each_run<2>({&a, &out}, work,
              [=](const PerOperand<2>& at, const PerOperand<2>& step, std::int64_t n) {
                const T* ar = pa + at[0];
                O* row = po + at[1];
                if (step[0] == 1 && step[1] == 1) {
                  for (std::int64_t i = 0; i < n; ++i) row[i] = O(f(ar[i], value));
                } else {
                  for (std::int64_t i = 0; i < n; ++i)
                    row[i * step[1]] = O(f(ar[i * step[0]], value));
                }
              });
}

constexpr std::int64_t work_of(BinaryOp op) {
  return op == BinaryOp::pow || op > BinaryOp::relu_bwd ? 16 : 1;
}

template <class T>
void where_typed(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  const bool* pc = condition.data<bool>();
  const T *pa = static_cast<const T*>(a.raw()), *pb = static_cast<const T*>(b.raw());
  T* po = static_cast<T*>(out.raw());
  each_run<4>({&condition, &a, &b, &out}, 1,
              [=](const PerOperand<4>& at, const PerOperand<4>& step, std::int64_t n) {
                const bool* c = pc + at[0];
                const T *x = pa + at[1], *y = pb + at[2];
                T* o = po + at[3];
                for (std::int64_t i = 0; i < n; ++i)
                  o[i * step[3]] = c[i * step[0]] ? x[i * step[1]] : y[i * step[2]];
              });
}

}  // namespace

void binary(const Tensor& a, const Tensor& b, BinaryOp runtime_op, const Tensor& out) {
  with_op(every<BinaryOp>, runtime_op, out.dtype(), [&]<BinaryOp op, class T>() {
    using C = Compute<T>;
    if constexpr (kHasRows<T>)
      if (const auto row = row_kernel<T>(op);
          row && a.is_contiguous() && b.is_contiguous() && out.is_contiguous()) {
        const T *pa = a.data<T>(), *pb = b.data<T>();
        T* po = out.data<T>();
        return parallel_for(out.numel(), work_of(op), [=](std::int64_t begin, std::int64_t end) {
          row(pa + begin, pb + begin, po + begin, end - begin);
        });
      }
    const auto f = [](C x, C y) { return apply<op, C>(x, y); };
    if constexpr (op >= BinaryOp::relu_bwd)
      backward_typed<T>(a, b, out, work_of(op), f);
    else
      binary_typed<T, T>(a, b, out, work_of(op), f);
  });
}

void binary_scalar(const Tensor& a, double value, BinaryOp runtime_op, bool reversed,
                   const Tensor& out) {
  UnaryOp simpler;
  if (simpler_power(runtime_op, value, reversed, simpler)) return unary(a, simpler, out);
  with_op(every<BinaryOp>, runtime_op, out.dtype(), [&]<BinaryOp op, class T>() {
    if constexpr (op < BinaryOp::relu_bwd) {  // no op has a gradient for a number
      using C = Compute<T>;
      const C v = number<op, C>(value);
      if constexpr (op == BinaryOp::sub || op == BinaryOp::div || op == BinaryOp::pow)
        if (reversed)
          return scalar_typed<T, T>(a, v, out, work_of(op),
                                    [](C x, C y) { return apply<op, C>(y, x); });
      scalar_typed<T, T>(a, v, out, work_of(op), [](C x, C y) { return apply<op, C>(x, y); });
    }
  });
}

void compare(const Tensor& a, const Tensor& b, CompareOp runtime_op, const Tensor& out) {
  with_comparable(a.dtype(), [&]<class T>() {
    using C = Compute<T>;
    with_op(every<CompareOp>, runtime_op, [&]<CompareOp op>() {
      binary_typed<T, bool>(a, b, out, 1, [](C x, C y) { return holds<op, C>(x, y); });
    });
  });
}

void compare_scalar(const Tensor& a, double value, CompareOp runtime_op, const Tensor& out) {
  with_comparable(a.dtype(), [&]<class T>() {
    using C = Compute<T>;
    const NumberComparison<T> to = comparison<T>(runtime_op, value);
    with_op(every<CompareOp>, to.op, [&]<CompareOp op>() {
      scalar_typed<T, bool>(a, to.value, out, 1, [](C x, C y) { return holds<op, C>(x, y); });
    });
  });
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  with_word(size_of(out.dtype()), [&]<class Word>() { where_typed<Word>(condition, a, b, out); });
}

}  // namespace weft::cpu
