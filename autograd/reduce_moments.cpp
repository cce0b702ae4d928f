// Reductions that read x twice or transform it first: var, norm, logsumexp, cumsum, prod.
#include <cmath>
#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/reduce_common.h"
#include "weft/autograd/view.h"

namespace weft {

using namespace detail;

namespace {

// A 16-bit mean or sum of exponentials is too coarse to be subtracted from close numbers.
Tensor computed(const Tensor& x) { return is_half(x.dtype()) ? cast(x, DType::f32) : x; }

// The mean over the axes in f64, not recorded. It is measured from the first number, so that equal
// numbers have exactly themselves as mean, and close ones no error that is large beside their
// spread.
Tensor accurate_mean(const Tensor& x, const Tensor& rows, const Axes& axes) {
  const Shape kept = axes.result_shape(x.shape(), true);
  if (axes.extent.reduced == 0) return Tensor::zeros(kept, DType::f64, x.device());
  const NoGradGuard off;
  Tensor first = x.detach();
  for (int d = 0; d < x.ndim(); ++d)
    if (axes.reduced(d)) first = narrow(first, d, 0, 1);
  first = contiguous(first).to(DType::f64);
  return add(first, run_reduce(rows, ReduceOp::sum_offsets, axes, kept, DType::f64, first,
                               1 / static_cast<double>(axes.extent.reduced)));
}

// x - center, where center is the mean over n numbers in f64: two numbers of x's dtype hold it.
Tensor centered(const Tensor& x, const Tensor& center, double n) {
  const Tensor high = center.to(x.dtype());
  Tensor low = sub(center, high.to(DType::f64)).to(x.dtype());
  if (recording(x)) {  // an outer tape differentiates the mean: a term of value 0
    const Tensor mean = mul(sum_to(x, center.shape()), 1 / n);
    low = add(low, sub(mean, mean.detach()));
  }
  return sub(sub(x, high), low);
}

// 1 / (n - correction)
double weight_of_square(const Axes& axes, int correction) {
  return 1 / std::max(0.0, static_cast<double>(axes.extent.reduced) - correction);
}

Tensor deviation(const Tensor& x, const Axes& axes, int correction, const Shape& shape) {
  const Tensor rows = as_rows(x, axes), center = accurate_mean(x, rows, axes);
  const double scale = weight_of_square(axes, correction);
  Tensor y;
  {
    NoGradGuard off;  // the root of the f64 variance: that of another dtype may leave its range
    y = sqrt(run_reduce(rows, ReduceOp::sum_squares, axes, shape, DType::f64, center, scale))
            .to(x.dtype());
  }
  if (recording(x))
    Tape::record(
        "stddev", {&x}, {&y},
        [s = save(x), sc = save(center, "mean"), sy = save(y, "y"), axes, correction,
         scale](Backward& g) {
          const Tensor saved = computed(s.get()), &mean = sc.get();
          const Shape& kept = mean.shape();
          const Tensor length = reshape(
              saved.same(s.get()) ? sy.get() : deviation(saved, axes, correction, kept), kept);
          const Tensor constant = eq(length, 0);
          const Tensor away = centered(saved, mean, static_cast<double>(axes.extent.reduced));
          const Tensor dy = mul(reshape(computed(g.dy()), kept), scale);
          const Tensor dx = mul(div(away, where(constant, 1, length)), where(constant, 0, dy));
          g.add(0, cast(dx, s.get().dtype()));
        });
  return y;
}

// The largest |x|: the reduced axes become the last one, so that max() sees them as one.
Tensor largest_magnitude(const Tensor& x, const Axes& axes, const Shape& shape) {
  check(axes.extent.reduced > 0, "norm: x must have an element for p = infinity, got shape {}",
        x.shape());
  Tensor rows = abs(x);
  int last = 0;
  for (int i = x.ndim() - 1; i >= 0; --i)
    if (axes.reduced(i)) rows = movedim(rows, i, x.ndim() - ++last);
  return reshape(max(flatten(rows, x.ndim() - last), -1), shape);
}

Tensor euclidean_norm(const Tensor& x, const Axes& axes, const Shape& shape) {
  Tensor y;
  {
    NoGradGuard off;
    y = sqrt(run_reduce(as_rows(x, axes), ReduceOp::sum_squares, axes, shape, DType::f64))
            .to(x.dtype());
  }
  if (recording(x))
    Tape::record(
        "norm", {&x}, {&y},
        [s = save(x), sy = save(y, "y"), kept = axes.result_shape(x.shape(), true)](Backward& g) {
          // Where the norm is 0 the gradient is 0, one of the subgradients. dy / length may leave
          // the range of the dtype; x / length is at most 1.
          const Tensor &length = sy.get(), nowhere = eq(length, 0);
          const Tensor direction = div(s.get(), reshape(where(nowhere, 1, length), kept));
          g.add(0, mul(direction, reshape(where(nowhere, 0, g.dy()), kept)));
        });
  return y;
}

Tensor power_norm(const Tensor& x, const Axes& axes, const Shape& shape, double p) {
  Tensor y;
  {
    NoGradGuard off;
    // In f64: powers leave the range of the other dtypes.
    const Tensor powers = pow(abs(x.to(DType::f64)), p);
    y = pow(run_reduce(as_rows(powers, axes), ReduceOp::sum, axes, shape, DType::f64), 1 / p)
            .to(x.dtype());
  }
  if (recording(x))
    Tape::record("norm", {&x}, {&y},
                 [s = save(x), sy = save(y, "y"), kept = axes.result_shape(x.shape(), true),
                  p](Backward& g) {
                   const Tensor &saved = s.get(), &length = sy.get();
                   // If all of x is 0 the gradient is 0, one of the subgradients.
                   const Tensor zero = zero_of(length);
                   const Tensor one = Tensor::ones({}, length.dtype(), length.device());
                   const Tensor safe = reshape(where(eq(length, 0), one, length), kept);
                   // At an element that is 0 the power or its derivative is infinite. The formula
                   // gets 1 there, so that its derivatives are finite; where() then discards the
                   // result.
                   const Tensor none = eq(saved, 0), away = where(none, one, saved);
                   const Tensor slope = mul(pow(div(abs(away), safe), p - 1), sign(away));
                   g.add(0, where(none, zero, mul(slope, reshape(g.dy(), kept))));
                 });
  return y;
}

Tensor cumsum_along(const Tensor& x, int dim, bool reverse) {
  const DType dtype = is_compute(x.dtype()) ? x.dtype() : DType::i64;
  const Axes axes("cumsum", x.shape(), {dim});
  Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  dispatch<cpu::cumsum, cuda::cumsum>(as_rows(x, axes), axes.extent, reverse, y);
  if (recording(x))
    Tape::record("cumsum", {&x}, {&y},
                 [dim, reverse](Backward& g) { g.add(0, cumsum_along(g.dy(), dim, !reverse)); });
  return y;
}

}  // namespace

Tensor var(const Tensor& x, const Dims& dims, int correction, bool keepdim) {
  check_tensor("var", "x", x);
  const Axes axes("var", x.shape(), dims);
  check_floating("var", x.dtype());
  const Tensor rows = as_rows(x, axes);
  const auto n = static_cast<double>(axes.extent.reduced);
  const double scale = weight_of_square(axes, correction);
  // Two passes: the mean of squares minus the square of the mean cancels when |mean| >> std.
  const Tensor center = accurate_mean(x, rows, axes);
  Tensor y = run_reduce(rows, ReduceOp::sum_squares, axes, axes.result_shape(x.shape(), keepdim),
                        x.dtype(), center, scale);
  if (recording(x))
    Tape::record("var", {&x}, {&y},
                 [s = save(x), sc = save(center, "mean"), n, scale](Backward& g) {
                   const Tensor saved = computed(s.get()), &mean = sc.get();
                   const Tensor dy = mul(reshape(computed(g.dy()), mean.shape()), 2 * scale);
                   g.add(0, cast(mul(dy, centered(saved, mean, n)), s.get().dtype()));
                 });
  return y;
}

Tensor norm(const Tensor& x, const Dims& dims, bool keepdim, double p) {
  check_floating("norm", x);
  check(p > 0, "norm: p must be positive (or infinity), got {}", p);
  const Axes axes("norm", x.shape(), dims);
  const Shape shape = axes.result_shape(x.shape(), keepdim);
  if (p == 2) return euclidean_norm(x, axes, shape);
  if (p == 1) return sum(abs(x), dims, keepdim);
  return std::isinf(p) ? largest_magnitude(x, axes, shape) : power_norm(x, axes, shape, p);
}

Tensor logsumexp(const Tensor& x, int dim, bool keepdim) {
  check_tensor("logsumexp", "x", x);
  const Axes axes("logsumexp", x.shape(), {dim});
  check_floating("logsumexp", x.dtype());
  const Shape kept = axes.result_shape(x.shape(), true);
  const Shape shape = axes.result_shape(x.shape(), keepdim);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Tensor y;
  {
    NoGradGuard off;
    const Tensor rows = as_rows(x, axes);
    const Tensor zero = Tensor::zeros({}, DType::f64, x.device());
    const Tensor top = run_reduce(rows, ReduceOp::max, axes, shape, DType::f64);
    const Tensor center = where(eq(abs(top), kInfinity), zero, top);  // infinity - infinity is NaN
    y = add(log(run_reduce(rows, ReduceOp::sum_exp, axes, shape, DType::f64, center)), center)
            .to(x.dtype());
  }
  if (recording(x))
    Tape::record("logsumexp", {&x}, {&y}, [s = save(x), sy = save(y, "y"), kept, dim](Backward& g) {
      const Tensor saved = computed(s.get());
      const Tensor total = saved.same(s.get()) ? sy.get() : logsumexp(saved, dim);
      const Tensor zero = zero_of(total);
      const Tensor safe = where(eq(total, -kInfinity), zero, total);  // all of x is -infinity
      const Tensor dx = mul(exp(sub(saved, reshape(safe, kept))), reshape(computed(g.dy()), kept));
      g.add(0, cast(dx, s.get().dtype()));
    });
  return y;
}

Tensor cumsum(const Tensor& x, int dim) {
  check_tensor("cumsum", "x", x);
  if (!is_compute(x.dtype()) && !is_integral(x.dtype()) && x.dtype() != DType::boolean)
    throw_bad_dtype("cumsum", x.dtype(), kComparableNames);
  return cumsum_along(x, dim, false);
}

Tensor stddev(const Tensor& x, const Dims& dims, int correction, bool keepdim) {
  check_tensor("stddev", "x", x);
  const Axes axes("stddev", x.shape(), dims);
  check_floating("stddev", x.dtype());
  return deviation(x, axes, correction, axes.result_shape(x.shape(), keepdim));
}

Tensor prod(const Tensor& x, int dim, bool keepdim) {
  check_tensor("prod", "x", x);
  dim = normalize_dim("prod", dim, x.ndim());
  if (x.ndim() == 0) return reshape(prod(reshape(x, {1}), 0), {});
  if (x.dtype() != DType::boolean) check_numeric("prod", x.dtype());
  Tensor y = is_compute(x.dtype()) ? computed(x) : cast(x, DType::i64);
  if (y.dim(dim) == 0) {
    Shape shape = y.shape();
    shape[dim] = 1;
    y = Tensor::ones(shape, y.dtype(), y.device());
  }
  while (y.dim(dim) > 1) {
    const std::int64_t n = y.dim(dim), half = n / 2;
    const Tensor pairs = mul(narrow(y, dim, 0, half), narrow(y, dim, half, half));
    y = n % 2 ? cat({pairs, narrow(y, dim, n - 1, 1)}, dim) : pairs;
  }
  if (is_compute(x.dtype())) y = cast(y, x.dtype());
  if (y.same(x)) y = clone(x);  // one element: no view of x
  return keepdim ? y : squeeze(y, dim);
}

Tensor prod(const Tensor& x) {
  check_tensor("prod", "x", x);
  return prod(flatten(x), 0);
}

}  // namespace weft
