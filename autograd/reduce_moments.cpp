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

Tensor var(const Tensor& x, std::initializer_list<int> dims, int correction, bool keepdim) {
  check_tensor("var", "x", x);
  const Axes axes("var", x.shape(), dims);
  check_floating("var", x.dtype());
  const Tensor rows = as_rows(x, axes);
  const auto n = static_cast<double>(axes.extent.reduced);
  const double scale = 1 / std::max(0.0, n - correction);
  const Shape kept = axes.result_shape(x.shape(), true);
  // Two passes: the mean of squares minus the square of the mean cancels when |mean| >> std.
  const Tensor center = run_reduce(rows, ReduceOp::sum, axes, kept, DType::f64, {}, 1 / n);
  Tensor y = run_reduce(rows, ReduceOp::sum_squares, axes, axes.result_shape(x.shape(), keepdim),
                        x.dtype(), center, scale);
  if (recording(x))
    Tape::record("var", {&x}, {&y}, [s = save(x), kept, n, scale](Backward& g) {
      const Tensor saved = computed(s.get());
      const Tensor mu = mul(sum_to(saved, kept), 1 / n);
      const Tensor dy = mul(reshape(computed(g.dy()), kept), 2 * scale);
      g.add(0, cast(mul(dy, sub(saved, mu)), s.get().dtype()));
    });
  return y;
}

Tensor norm(const Tensor& x, std::initializer_list<int> dims, bool keepdim) {
  check_floating("norm", x);
  const Axes axes("norm", x.shape(), dims);
  const Shape kept = axes.result_shape(x.shape(), true);
  Tensor y;
  {
    NoGradGuard off;
    y = sqrt(run_reduce(as_rows(x, axes), ReduceOp::sum_squares, axes,
                        axes.result_shape(x.shape(), keepdim), DType::f64))
            .to(x.dtype());
  }
  if (recording(x))
    Tape::record("norm", {&x}, {&y}, [s = save(x), sy = save(y, "y"), kept](Backward& g) {
      // Where the norm is 0 the gradient is 0, one of the subgradients.
      const Tensor &length = sy.get(), nowhere = eq(length, 0);
      const Tensor factor = where(nowhere, 0, div(g.dy(), where(nowhere, 1, length)));
      g.add(0, mul(s.get(), reshape(factor, kept)));
    });
  return y;
}

Tensor norm(const Tensor& x, double p) {
  check_floating("norm", x);
  check(p > 0, "norm: p must be positive (or infinity), got {}", p);
  if (p == 2) return norm(x, {});
  if (p == 1) return sum(abs(x));
  if (std::isinf(p)) {
    check(x.numel() > 0, "norm: x must have an element for p = infinity, got shape {}", x.shape());
    return max(abs(x));
  }
  Tensor y;
  {
    NoGradGuard off;
    const Axes axes("norm", x.shape(), {});
    // In f64: powers leave the range of the other dtypes.
    const Tensor powers = pow(abs(x.to(DType::f64)), p);
    y = pow(run_reduce(as_rows(powers, axes), ReduceOp::sum, axes, {}, DType::f64), 1 / p)
            .to(x.dtype());
  }
  if (recording(x))
    Tape::record("norm", {&x}, {&y}, [s = save(x), sy = save(y, "y"), p](Backward& g) {
      const Tensor &saved = s.get(), &length = sy.get();
      // If all of x is 0 the gradient is 0, one of the subgradients.
      const Tensor zero = zero_of(length);
      const Tensor one = Tensor::ones({}, length.dtype(), length.device());
      const Tensor safe = where(eq(length, 0), one, length);
      // At an element that is 0 the power or its derivative is infinite. The formula gets 1 there,
      // so that its derivatives are finite; where() then discards the result.
      const Tensor none = eq(saved, 0), away = where(none, one, saved);
      const Tensor slope = mul(pow(div(abs(away), safe), p - 1), sign(away));
      g.add(0, where(none, zero, mul(slope, g.dy())));
    });
  return y;
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

Tensor stddev(const Tensor& x, std::initializer_list<int> dims, int correction, bool keepdim) {
  check_tensor("stddev", "x", x);
  check_floating("stddev", x.dtype());
  const Tensor v = var(x, dims, correction, keepdim), constant = eq(v, 0);
  return where(constant, 0, sqrt(where(constant, 1, v)));  // the slope of sqrt at 0 is infinite
}

Tensor prod(const Tensor& x, int dim, bool keepdim) {
  check_tensor("prod", "x", x);
  check(x.ndim() > 0, "prod: x must have at least 1 axis, got shape {}", x.shape());
  dim = normalize_dim("prod", dim, x.ndim());
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
