// Unary kernels, clamp and the two in-place updates.
#include "weft/core/cpu/elementwise_loop.h"
#include "weft/core/cpu/elementwise_simd.h"
#include "weft/core/cpu/half_blocks.h"
#include "weft/core/cpu/transpose.h"
#include "weft/core/kernels/elementwise_ops.h"

namespace weft::cpu {
namespace {

// Handles every contiguous unary op.
template <UnaryOp op, class T>
void unary_row(const T* x, T* y, std::int64_t n) {
  if constexpr (kHasRows<T>)
    if (const auto row = row_kernel<T>(op)) return row(x, y, n);
  for (std::int64_t i = 0; i < n; ++i) y[i] = T(apply<op>(static_cast<Compute<T>>(x[i])));
}

template <class T>
void unary_rows(const Tensor& x, const Tensor& out, std::int64_t work,
                void (*row)(const T* x, T* y, std::int64_t n)) {
  const T* px = x.data<T>();
  T* po = out.data<T>();
  each_run<2>({&x, &out}, work,
              [=](const PerOperand<2>& at, const PerOperand<2>& step, std::int64_t elements) {
                const T* xr = px + at[0];
                T* yr = po + at[1];
                if (step[0] == 1 && step[1] == 1) return row(xr, yr, elements);
                each_block(elements, [&](std::int64_t i, std::int64_t n) {
                  T block[kRunBlock];
                  const T* xs = gather(xr + i * step[0], step[0], n, block);
                  scatter(yr + i * step[1], step[1], n, [&](T* ys) { row(xs, ys, n); });
                });
              });
}

// Whether a row function of the dtype has computed the result.
template <class T>
bool by_rows(const Tensor& x, UnaryOp op, const Tensor& out) {
  const auto row = row_kernel<T>(op);
  if (!row || !x.is_contiguous() || !out.is_contiguous()) return false;
  const T* px = x.data<T>();
  T* po = out.data<T>();
  parallel_for(out.numel(), 16, [=](std::int64_t begin, std::int64_t end) {
    row(px + begin, po + begin, end - begin);
  });
  return true;
}

// x is of 16 bits.
void unary_halves(const Tensor& x, UnaryOp runtime_op, const Tensor& out) {
  if (x.dtype() == DType::bf16 ? by_rows<bf16>(x, runtime_op, out)
                               : by_rows<f16>(x, runtime_op, out))
    return;
  void (*row)(const float* x, float* y, std::int64_t n) = nullptr;
  std::int64_t work = 1;
  with_op(every<UnaryOp>, runtime_op, [&]<UnaryOp op>() {
    row = &unary_row<op, float>;
    work = takes_integers(op) ? 1 : 16;
  });
  each_run<2>({&x, &out}, work,
              [=, from = HalfBlocks(x), to = HalfBlocks(out)](
                  const PerOperand<2>& at, const PerOperand<2>& step, std::int64_t elements) {
                each_block(elements, [&](std::int64_t i, std::int64_t n) {
                  float block[kRunBlock];
                  from.read(at[0] + i * step[0], step[0], n, block);
                  row(block, block, n);
                  to.write(block, at[1] + i * step[1], step[1], n);
                });
              });
}

// out[i] = f(x[i], out[i]), for kernels without dedicated row functions.
template <class T, class F>
void update(const Tensor& x, const Tensor& out, F f, std::int64_t work = 1) {
  const T* px = x.data<T>();
  T* po = out.data<T>();
  each_run<2>({&x, &out}, work,
              [=](const PerOperand<2>& at, const PerOperand<2>& step, std::int64_t n) {
                const T* xr = px + at[0];
                T* yr = po + at[1];
                if (step[0] == 1 && step[1] == 1) {
                  for (std::int64_t i = 0; i < n; ++i) yr[i] = T(f(xr[i], yr[i]));
                } else {
                  for (std::int64_t i = 0; i < n; ++i)
                    yr[i * step[1]] = T(f(xr[i * step[0]], yr[i * step[1]]));
                }
              });
}

// The formula of an op in the form that update() calls.
template <UnaryOp op, class C>
C formula(C x, C) {
  return apply<op>(x);
}

}  // namespace

void unary(const Tensor& x, UnaryOp runtime_op, const Tensor& out) {
  if (copy_transposed(x, out)) return unary(out, runtime_op, out);
  if (is_half(x.dtype())) return unary_halves(x, runtime_op, out);
  with_op(every<UnaryOp>, runtime_op, x.dtype(), [&]<UnaryOp op, class T>() {
    if constexpr (kIsHalf<T>)
      return;  // above
    else if constexpr (shares_loop(op))
      update<T>(x, out, &formula<op, Compute<T>>, 16);
    else
      unary_rows<T>(x, out, takes_integers(op) ? 1 : 16, &unary_row<op, T>);
  });
}

void clamp(const Tensor& x, double low, double high, const Tensor& out) {
  dispatch_numeric(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    const C lo = nearest<C>(low), hi = nearest<C>(high);
    update<T>(x, out, [=](C v, C) { return v < lo ? lo : v > hi ? hi : v; });  // keeps NaN
  });
}

void clamp_bwd(const Tensor& x, const Tensor& dy, double low, double high, const Tensor& out) {
  dispatch_floating(x.dtype(), [&]<class T>() {
    using C = Compute<T>;
    const C lo = static_cast<C>(low), hi = static_cast<C>(high);
    const T *px = x.data<T>(), *pdy = dy.data<T>();
    T* po = out.data<T>();
    each_run<3>({&x, &dy, &out}, 1,
                [=](const PerOperand<3>& at, const PerOperand<3>& step, std::int64_t n) {
                  for (std::int64_t i = 0; i < n; ++i) {
                    const C v = px[at[0] + i * step[0]];
                    po[at[2] + i * step[2]] =
                        v >= lo && v <= hi ? pdy[at[1] + i * step[1]] : T(C(0));
                  }
                });
  });
}

void add_scaled(const Tensor& x, double alpha, const Tensor& out) {
  dispatch_numeric(
      out.dtype(),
      [&]<class T>() {
        using C = Compute<T>;
        const C factor = number<BinaryOp::mul, C>(alpha);
        update<T>(x, out, [=](C v, C old) {
          return apply<BinaryOp::add>(old, apply<BinaryOp::mul>(factor, v));
        });
      },
      "add_");
}

void scale(const Tensor& out, double factor) {
  dispatch_numeric(
      out.dtype(),
      [&]<class T>() {
        using C = Compute<T>;
        const C f = number<BinaryOp::mul, C>(factor);
        T* p = out.data<T>();
        each_run<1>({&out}, 1,
                    [=](const PerOperand<1>& at, const PerOperand<1>& step, std::int64_t n) {
                      T* row = p + at[0];
                      if (step[0] == 1) {
                        for (std::int64_t i = 0; i < n; ++i)
                          row[i] = T(apply<BinaryOp::mul, C>(row[i], f));
                      } else {
                        for (std::int64_t i = 0; i < n; ++i)
                          row[i * step[0]] = T(apply<BinaryOp::mul, C>(row[i * step[0]], f));
                      }
                    });
      },
      "mul_");
}

void scale_by(const Tensor& x, const Tensor& factor, bool adds, const Tensor& out) {
  double by = 1;
  dispatch_floating(factor.dtype(),
                    [&]<class T>() { by = static_cast<double>(*factor.data<T>()); });
  if (adds) return add_scaled(x, by, out);
  if (x.raw() == out.raw()) {
    if (by != 1) scale(out, by);
    return;
  }
  dispatch_floating(out.dtype(), [&]<class T>() {
    using C = Compute<T>;
    const C f = number<BinaryOp::mul, C>(by);
    update<T>(x, out, [=](C v, C) { return apply<BinaryOp::mul>(v, f); });
  });
}

}  // namespace weft::cpu
