// Kernels of two operands: arithmetic, fused backward ops, comparisons, where.
#include <algorithm>

#include "weft/core/cpu/elementwise_loop.h"
#include "weft/core/cpu/elementwise_simd.h"
#include "weft/core/cpu/half_blocks.h"
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

// A loop of an op over contiguous elements. O is T, or bool for a comparison.
template <class T, class O = T>
using BinaryRow = void (*)(const T* a, const T* b, O* out, std::int64_t n);

template <BinaryOp op, class T>
void binary_row_of(const T* a, const T* b, T* out, std::int64_t n) {
  if constexpr (kHasRows<T>)
    if (const auto row = row_kernel<T>(op)) return row(a, b, out, n);
  for (std::int64_t i = 0; i < n; ++i) out[i] = T(apply<op, T>(a[i], b[i]));
}

// Fused backward ops.
template <class T>
void backward_rows(const Tensor& a, const Tensor& b, const Tensor& out, std::int64_t work,
                   BinaryRow<T> row) {
  const T *pa = a.data<T>(), *pb = b.data<T>();
  T* po = out.data<T>();
  each_run<3>({&a, &b, &out}, work,
              [=](const PerOperand<3>& at, const PerOperand<3>& step, std::int64_t elements) {
                const T *x = pa + at[0], *y = pb + at[1];
                T* o = po + at[2];
                if (step[0] == 1 && step[1] == 1 && step[2] == 1) return row(x, y, o, elements);
                each_block(elements, [&](std::int64_t i, std::int64_t n) {
                  T xb[kRunBlock], yb[kRunBlock];
                  const T* xs = gather(x + i * step[0], step[0], n, xb);
                  const T* ys = gather(y + i * step[1], step[1], n, yb);
                  scatter(o + i * step[2], step[2], n, [&](T* os) { row(xs, ys, os, n); });
                });
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

template <class T, class O, class F>
void scalar_typed(const Tensor& a, T value, const Tensor& out, std::int64_t work, F f) {
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
  return is_slow(op) || op > BinaryOp::relu_bwd ? 16 : 1;
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

BinaryRow<float> f32_row(BinaryOp runtime_op) {
  BinaryRow<float> row = nullptr;
  with_op(every<BinaryOp>, runtime_op, [&]<BinaryOp op>() { row = &binary_row_of<op, float>; });
  return row;
}

BinaryRow<float, bool> f32_row(CompareOp runtime_op) {
  BinaryRow<float, bool> row = nullptr;
  with_op(every<CompareOp>, runtime_op, [&]<CompareOp op>() {
    row = [](const float* a, const float* b, bool* out, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) out[i] = holds<op>(a[i], b[i]);
    };
  });
  return row;
}

// Computes a block of results, from a row of f32, into 16 bits or bool.
template <class O>
struct BlockOut {
  explicit BlockOut(const Tensor& out) : half(out) {}
  template <class F>
  void operator()(std::int64_t offset, std::int64_t step, std::int64_t n, const F& compute) const {
    float y[kRunBlock];
    compute(y);
    half.write(y, offset, step, n);
  }
  HalfBlocks half;
};

template <>
struct BlockOut<bool> {
  explicit BlockOut(const Tensor& out) : data(out.data<bool>()) {}
  template <class F>
  void operator()(std::int64_t offset, std::int64_t step, std::int64_t n, const F& compute) const {
    scatter(data + offset, step, n, compute);
  }
  bool* data;
};

// a and b are of 16 bits.
template <class O>
void half_typed(const Tensor& a, const Tensor& b, const Tensor& out, std::int64_t work,
                BinaryRow<float, O> row) {
  each_run<3>({&a, &b, &out}, work,
              [=, x = HalfBlocks(a), y = HalfBlocks(b), put = BlockOut<O>(out)](
                  const PerOperand<3>& at, const PerOperand<3>& step, std::int64_t elements) {
                each_block(elements, [&](std::int64_t i, std::int64_t n) {
                  float xs[kRunBlock], ys[kRunBlock];
                  x.read(at[0] + i * step[0], step[0], n, xs);
                  y.read(at[1] + i * step[1], step[1], n, ys);
                  put(at[2] + i * step[2], step[2], n, [&](O* o) { row(xs, ys, o, n); });
                });
              });
}

// a is of 16 bits.
template <class O>
void half_scalar_typed(const Tensor& a, float value, bool reversed, const Tensor& out,
                       std::int64_t work, BinaryRow<float, O> row) {
  each_run<2>({&a, &out}, work,
              [=, x = HalfBlocks(a), put = BlockOut<O>(out)](
                  const PerOperand<2>& at, const PerOperand<2>& step, std::int64_t elements) {
                float xs[kRunBlock], values[kRunBlock];
                std::fill_n(values, std::min(elements, kRunBlock), value);
                each_block(elements, [&](std::int64_t i, std::int64_t n) {
                  x.read(at[0] + i * step[0], step[0], n, xs);
                  put(at[1] + i * step[1], step[1], n,
                      [&](O* o) { reversed ? row(values, xs, o, n) : row(xs, values, o, n); });
                });
              });
}

// Whether a row function of the dtype has computed the result.
template <class T>
bool by_rows(const Tensor& a, const Tensor& b, BinaryOp op, const Tensor& out) {
  const auto row = row_kernel<T>(op);
  if (!row || !a.is_contiguous() || !b.is_contiguous() || !out.is_contiguous()) return false;
  const T *pa = a.data<T>(), *pb = b.data<T>();
  T* po = out.data<T>();
  parallel_for(out.numel(), work_of(op), [=](std::int64_t begin, std::int64_t end) {
    row(pa + begin, pb + begin, po + begin, end - begin);
  });
  return true;
}

}  // namespace

void binary(const Tensor& a, const Tensor& b, BinaryOp runtime_op, const Tensor& out) {
  if (is_half(out.dtype())) {
    const bool done = out.dtype() == DType::bf16 ? by_rows<bf16>(a, b, runtime_op, out)
                                                 : by_rows<f16>(a, b, runtime_op, out);
    if (!done) half_typed<float>(a, b, out, work_of(runtime_op), f32_row(runtime_op));
    return;
  }
  with_op(every<BinaryOp>, runtime_op, out.dtype(), [&]<BinaryOp op, class T>() {
    if constexpr (!kIsHalf<T>) {
      if constexpr (op >= BinaryOp::relu_bwd)
        backward_rows<T>(a, b, out, work_of(op), &binary_row_of<op, T>);
      else
        binary_typed<T, T>(a, b, out, work_of(op), [](T x, T y) { return apply<op, T>(x, y); });
    }
  });
}

void binary_scalar(const Tensor& a, double value, BinaryOp runtime_op, bool reversed,
                   const Tensor& out) {
  UnaryOp simpler;
  if (simpler_power(runtime_op, value, reversed, simpler)) return unary(a, simpler, out);
  // 16 bits times 0.1: the number is not rounded to 16 bits.
  if (is_half(out.dtype()))
    return half_scalar_typed<float>(a, nearest<float>(value), reversed, out, work_of(runtime_op),
                                    f32_row(runtime_op));
  with_op(every<BinaryOp>, runtime_op, out.dtype(), [&]<BinaryOp op, class T>() {
    if constexpr (op < BinaryOp::relu_bwd && !kIsHalf<T>) {  // no op has a gradient for a number
      const T v = number<op, T>(value);
      if constexpr (op == BinaryOp::sub || op == BinaryOp::div || op == BinaryOp::pow)
        if (reversed)
          return scalar_typed<T, T>(a, v, out, work_of(op),
                                    [](T x, T y) { return apply<op, T>(y, x); });
      scalar_typed<T, T>(a, v, out, work_of(op), [](T x, T y) { return apply<op, T>(x, y); });
    }
  });
}

void compare(const Tensor& a, const Tensor& b, CompareOp runtime_op, const Tensor& out) {
  if (is_half(a.dtype())) return half_typed<bool>(a, b, out, 1, f32_row(runtime_op));
  with_comparable(a.dtype(), [&]<class T>() {
    if constexpr (!kIsHalf<T>)
      with_op(every<CompareOp>, runtime_op, [&]<CompareOp op>() {
        binary_typed<T, bool>(a, b, out, 1, [](T x, T y) { return holds<op, T>(x, y); });
      });
  });
}

void compare_scalar(const Tensor& a, double value, CompareOp runtime_op, const Tensor& out) {
  with_comparable(a.dtype(), [&]<class T>() {
    const NumberComparison<T> to = comparison<T>(runtime_op, value);
    if constexpr (kIsHalf<T>)
      half_scalar_typed<bool>(a, to.value, false, out, 1, f32_row(to.op));
    else
      with_op(every<CompareOp>, to.op, [&]<CompareOp op>() {
        scalar_typed<T, bool>(a, to.value, out, 1, [](T x, T y) { return holds<op, T>(x, y); });
      });
  });
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  with_word(size_of(out.dtype()), [&]<class Word>() { where_typed<Word>(condition, a, b, out); });
}

}  // namespace weft::cpu
