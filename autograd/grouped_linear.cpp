#include "weft/autograd/grouped_linear.h"

#include "weft/autograd/grouped_products.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/parameter_gradient.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft {
namespace {

void check_like_x(const char* label, const Tensor& t, const Shape& shape, const Tensor& x) {
  check(t.shape() == shape, "grouped_linear: {} must have shape {}, got {}", label, shape,
        t.shape());
  check(t.dtype() == x.dtype() && t.device() == x.device(),
        "grouped_linear: {} must be {} on {} like x, got {} on {}", label, x.dtype(), x.device(),
        t.dtype(), t.device());
}

void check_operands(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& rows,
                    const Tensor& bias_scale) {
  detail::check_tensor("grouped_linear", "x", x);
  detail::check_tensor("grouped_linear", "weight", weight);
  detail::check_tensor("grouped_linear", "rows", rows);
  if (!is_compute(x.dtype())) throw_bad_dtype("grouped_linear", x.dtype(), kFloatingNames);
  check(x.ndim() == 2, "grouped_linear: x must have shape (rows, inputs), got {}", x.shape());
  check(weight.ndim() == 3 && weight.dim(1) > 0 && weight.dim(2) > 0,
        "grouped_linear: weight must have shape (groups, outputs, inputs) with at least 1 output "
        "and input, got {}",
        weight.shape());
  check_like_x("weight", weight, {weight.dim(0), weight.dim(1), x.dim(1)}, x);
  check(rows.dtype() == DType::i64 && rows.device() == kCpu,
        "grouped_linear: rows must be i64 on cpu, got {} on {}", rows.dtype(), rows.device());
  check(rows.shape() == Shape{weight.dim(0)}, "grouped_linear: rows must have shape {}, got {}",
        Shape{weight.dim(0)}, rows.shape());
  detail::check_group_rows("grouped_linear", contiguous(rows), x.dim(0));
  check(bias.defined() || !bias_scale.defined(), "grouped_linear: bias_scale needs a bias");
  if (bias.defined()) check_like_x("bias", bias, {weight.dim(0), weight.dim(1)}, x);
  if (bias_scale.defined()) check_like_x("bias_scale", bias_scale, {x.dim(0)}, x);
}

// dw (groups, outputs, inputs) = the products of dy and x, added to dw when `adds`.
void weight_grad(const Tensor& dy, const Tensor& x, const Tensor& rows, const Tensor& dw,
                 bool adds = false) {
  if (!adds) detail::clear_empty_groups(rows, dw);
  detail::grouped_product(dy, x, GroupedProduct::weight_grad, rows, dw, adds);
}

// The bias as a weight with one input column, whose input is the row's scale.
Tensor as_column(const Tensor& t) {
  Shape shape = t.shape(), strides = t.strides();
  shape.push_back(1);
  strides.push_back(1);
  return t.alias(shape, strides, 0);
}

}  // namespace

Tensor grouped_linear(const Tensor& given, const Tensor& weights, const Tensor& bias,
                      const Tensor& counts, const Tensor& bias_scale,
                      const DelayedGradients& later) {
  check_operands(given, weights, bias, counts, bias_scale);
  const Tensor x = contiguous(given), weight = contiguous(weights), rows = contiguous(counts);
  const Tensor own_bias = bias.defined() ? contiguous(bias) : Tensor();
  Tensor scale = bias_scale.defined() ? contiguous(bias_scale) : Tensor();
  if (bias.defined() && !scale.defined()) scale = Tensor::ones({x.dim(0)}, x.dtype(), x.device());
  Tensor y = Tensor::empty({x.dim(0), weight.dim(1)}, x.dtype(), x.device());
  if (bias.defined())
    detail::grouped_product(as_column(scale), as_column(own_bias), GroupedProduct::forward, rows,
                            y);
  detail::grouped_product(x, weight, GroupedProduct::forward, rows, y, bias.defined());
  if (recording(x, weight, own_bias, scale))
    Tape::record(
        "grouped_linear", {&x, &weight, &own_bias, &scale}, {&y},
        [sx = save(x, "x"), sw = save(weight, "weight"), sb = save(own_bias, "bias"),
         ss = save(scale, "bias_scale"), n = save(rows, "rows"),
         place = later.place_of(weight)](Backward& b) mutable {
          b.once_differentiable();
          const Tensor dy = contiguous(b.dy());
          // x is released, if nothing else owns it, before dx is allocated.
          if (b.needs(1))
            place.run(b, 1,
                      [dy, in = sx.take(), rows = n.get(), shape = sw.get().shape()](Backward& at,
                                                                                     int input) {
                        const GradientSum sum = at.accumulator(input, shape, dy.dtype(), true);
                        const Tensor dw = sum.to.defined()
                                              ? sum.to
                                              : Tensor::empty(shape, dy.dtype(), dy.device());
                        weight_grad(dy, in, rows, dw, sum.adds);
                        if (!sum.to.defined()) at.add(input, dw);
                      });
          if (b.needs(0)) {
            Tensor dx = Tensor::empty({dy.dim(0), sw.get().dim(2)}, dy.dtype(), dy.device());
            detail::grouped_product(dy, sw.get(), GroupedProduct::input_grad, n.get(), dx);
            b.add(0, std::move(dx));
          }
          if (b.needs(2)) {
            detail::ParameterGradient dbias(b, 2, {sw.get().dim(0), dy.dim(1)}, dy);
            weight_grad(dy, as_column(ss.get()), n.get(), as_column(dbias.to));
            dbias.give(b);
          }
          if (b.needs(3)) {
            Tensor ds = empty_like(ss.get());
            detail::grouped_product(dy, as_column(sb.get()), GroupedProduct::input_grad, n.get(),
                                    as_column(ds));
            b.add(3, std::move(ds));
          }
        });
  return y;
}

}  // namespace weft
