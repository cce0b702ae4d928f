#include "weft/autograd/fp8_linear.h"

#include "weft/autograd/discard.h"
#include "weft/autograd/fp8_kept.h"
#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/grouped_products.h"
#include "weft/autograd/linear_common.h"
#include "weft/autograd/operand.h"
#include "weft/core/error.h"

namespace weft {

using namespace detail;
using fp8::BackwardOverride;
using fp8::Products;
using fp8::Quantized;
using fp8::SavedQuantized;
using Later = DelayedGradients::Place;

namespace {

// What backward multiplies.
struct Kept {
  SavedQuantized x, weight;     // rounded
  Saved plain_x, plain_weight;  // with BackwardOverride::high_precision
};

struct Sizes {
  Shape x, weight;  // as given
};

void check_weight(const char* op, const Tensor& x, const Tensor& weight) {
  check(weight.dtype() == x.dtype(), "{}: weight must have the dtype of x, {}, got {}", op,
        x.dtype(), weight.dtype());
  check(weight.device() == x.device(), "{}: weight must be on the device of x, {}, got {}", op,
        x.device(), weight.device());
}

/// The codes of x that backward multiplies, from an x that is computed again.
class CodesOf : public MadeFrom {
 public:
  CodesOf(const Products& p, bool along_rows, bool columns)
      : p_(p), along_rows_(along_rows), columns_(columns) {}
  Tensor make(const Tensor& x) override {
    const Tensor matrix = contiguous(as_matrix(x));
    if (along_rows_) return fp8::round_along_rows(p_, matrix, fp8::kForward).rows;
    const Quantized q = fp8::round_x(p_, matrix, false, {.rows = !columns_, .columns = columns_});
    return columns_ ? q.columns : q.rows;
  }

 private:
  const Products p_;
  const bool along_rows_, columns_;
};

// Only what backward will read, to keep no more memory than that.
Kept keep(const Products& p, const Tensor& x, const Tensor& weight, Quantized qx, Quantized qw,
          const Tensor& x_given) {
  if (p.recipe.backward == BackwardOverride::high_precision)
    return {{}, {}, save(x, "x"), save(weight, "weight")};
  const bool dequantized = p.recipe.backward == BackwardOverride::dequantized;
  const bool along_rows = p.recipe.scaling == fp8::Scaling::block && !dequantized;
  if (p.recipe.scaling == fp8::Scaling::block) {
    if (along_rows) qx = fp8::round_along_rows(p, x, fp8::kForward);
  } else if (x.device().is_gpu()) {
    if (dequantized)
      qx.columns = qw.columns = {};
    else
      qx.rows = qw.rows = {};
  }
  Kept kept{SavedQuantized(qx, "x"), SavedQuantized(qw, "weight"), {}, {}};
  if (DiscardScope::any() && x_given.numel() > 0)
    DiscardScope::keeps_made(x_given, qx.columns.defined() ? qx.columns : qx.rows,
                             std::make_unique<CodesOf>(p, along_rows, qx.columns.defined()));
  return kept;
}

Tensor matrix_like_x(const Products& p, Device device) {
  return Tensor::empty({p.all_rows, p.inputs}, p.dtype, device);
}

// Backward with operands that are not rounded.
void plain_backward(Backward& b, const Products& p, const Kept& kept, const Sizes& sizes,
                    const Tensor& dy, const Later& later) {
  const bool high = p.recipe.backward == BackwardOverride::high_precision;
  const auto operand = [&](const Saved& plain, const SavedQuantized& rounded,
                           const RowGroups& groups) {
    return high ? contiguous(plain.get()) : fp8::dequantize(rounded.get(), groups, p.dtype);
  };
  if (b.needs(0)) {
    Tensor dx = matrix_like_x(p, dy.device());
    fp8::multiply_plain(p, GroupedProduct::input_grad, dy,
                        operand(kept.plain_weight, kept.weight, p.weight_groups()), {}, dx);
    b.add(0, reshape(dx, sizes.x));
  }
  if (!b.needs(1)) return;
  later.run(b, 1,
            [p, dy, shape = sizes.weight, x = operand(kept.plain_x, kept.x, p.row_groups())](
                Backward& at, int input) {
              fp8::add_product_gradient(
                  at, input, p.dtype, shape, dy.device(), [&](const Tensor& out, bool accumulate) {
                    fp8::multiply_plain(p, GroupedProduct::weight_grad, dy, x, {}, out, accumulate);
                  });
            });
}

void rounded_backward(Backward& b, const Products& p, const Kept& kept, const Sizes& sizes,
                      const Tensor& dy, const Later& later) {
  const bool gpu = dy.device().is_gpu(), block = p.recipe.scaling == fp8::Scaling::block;
  const bool data = b.needs(0), weight = b.needs(1);
  Quantized g;
  if (data || (weight && !block))
    g = fp8::round_gradient(p, dy, {.rows = data || !gpu, .columns = gpu && weight});
  if (data) {
    Tensor dx = matrix_like_x(p, dy.device());
    fp8::multiply(p, GroupedProduct::input_grad, g, kept.weight.get(), {}, dx);
    b.add(0, reshape(dx, sizes.x));
  }
  if (!weight) return;
  if (gpu) g.rows = {};
  if (block) g = fp8::round_along_rows(p, dy, fp8::kGradient);
  later.run(b, 1, [p, g, shape = sizes.weight, x = kept.x.get()](Backward& at, int input) {
    fp8::add_product_gradient(
        at, input, p.dtype, shape, x.inverse.device(), [&](const Tensor& out, bool accumulate) {
          fp8::multiply(p, GroupedProduct::weight_grad, g, x, {}, out, accumulate);
        });
  });
}

// x (R, I) and weight are contiguous; x_given has the shape of the result's leading axes.
Tensor run(const char* op, const Products& p, const Tensor& x_given, const Tensor& weight_given,
           const Tensor& bias, const Shape& result, const fp8::LayerState* state,
           const DelayedGradients& later) {
  check_products(op, p, x_given.device());
  const bool recorded = recording(x_given, weight_given, bias);
  const bool transposes = recorded && x_given.device().is_gpu() &&
                          p.recipe.scaling != fp8::Scaling::block &&
                          p.recipe.backward == BackwardOverride::none;
  Tensor y = Tensor::empty(result, p.dtype, x_given.device());
  const bool keeps = recorded && !Tape::counting();
  Tensor x, weight;
  Quantized qw, qx;
  {
    const NoGradGuard quiet;
    x = contiguous(as_matrix(x_given));
    weight = contiguous(weight_given);
    qw = fp8::round_weight(p, weight, recorded, transposes, state);
    qx = fp8::round_x(p, x, recorded, {.rows = true, .columns = transposes && keeps}, {},
                      fp8::take_rows(x_given, p.recipe, p.delayed));
    fp8::multiply(p, GroupedProduct::forward, qx, qw, bias.defined() ? contiguous(bias) : bias,
                  as_matrix(y));
  }
  if (!recorded) return y;
  const Kept kept = keeps ? keep(p, x, weight, qx, qw, x_given) : Kept();
  Tape::record(op, {&x_given, &weight_given, &bias}, {&y},
               [p, kept, sizes = Sizes{x_given.shape(), weight_given.shape()},
                place = later.place_of(weight_given)](Backward& b) {
                 b.once_differentiable();
                 const NoGradGuard quiet;
                 const Tensor dy = contiguous(as_matrix(b.dy()));
                 if (p.recipe.backward == BackwardOverride::none)
                   rounded_backward(b, p, kept, sizes, dy, place);
                 else
                   plain_backward(b, p, kept, sizes, dy, place);
                 add_bias_gradient(b, 2, dy);
               });
  return y;
}

}  // namespace

Tensor fp8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const fp8::Recipe& recipe, const fp8::LayerState* state) {
  check_tensor("fp8_linear", "x", x);
  check_tensor("fp8_linear", "weight", weight);
  check(x.ndim() >= 1 && weight.ndim() == 2 && weight.dim(1) == x.dim(-1),
        "fp8_linear: weight must have shape [N, K] for x [..., K], got {} and {}", weight.shape(),
        x.shape());
  check_weight("fp8_linear", x, weight);
  const Shape n{weight.dim(0)};
  check(!bias.defined() ||
            (bias.shape() == n && bias.dtype() == x.dtype() && bias.device() == x.device()),
        "fp8_linear: bias must be {} with shape {} on {}, got {} with shape {}", x.dtype(), n,
        x.device(), bias.defined() ? bias.dtype() : x.dtype(), bias.defined() ? bias.shape() : n);
  Shape result = x.shape();
  result[result.size() - 1] = weight.dim(0);
  const Products p{.recipe = recipe,
                   .dtype = x.dtype(),
                   .count = 1,
                   .all_rows = weight.dim(1) ? x.numel() / weight.dim(1) : 0,
                   .outputs = weight.dim(0),
                   .inputs = weight.dim(1),
                   .delayed = state ? state->delayed : fp8::Delayed{}};
  return run("fp8_linear", p, x, weight, bias, result, state, {});
}

Tensor fp8_grouped_linear(const Tensor& x, const Tensor& weight, const Tensor& given,
                          const fp8::Recipe& recipe, const fp8::LayerState* state,
                          const DelayedGradients& later) {
  check_tensor("fp8_grouped_linear", "x", x);
  check_tensor("fp8_grouped_linear", "weight", weight);
  check_tensor("fp8_grouped_linear", "rows", given);
  check(x.ndim() == 2 && weight.ndim() == 3 && weight.dim(2) == x.dim(1),
        "fp8_grouped_linear: weight must have shape [E, O, I] for x [R, I], got {} and {}",
        weight.shape(), x.shape());
  check_weight("fp8_grouped_linear", x, weight);
  check(given.dtype() == DType::i64 && given.device() == kCpu &&
            given.shape() == Shape{weight.dim(0)},
        "fp8_grouped_linear: rows must be i64 with shape {} on cpu, got {} with shape {}",
        Shape{weight.dim(0)}, given.dtype(), given.shape());
  const Tensor rows = contiguous(given);
  check_group_rows("fp8_grouped_linear", rows, x.dim(0));
  const Products p{.recipe = recipe,
                   .dtype = x.dtype(),
                   .count = weight.dim(0),
                   .all_rows = x.dim(0),
                   .outputs = weight.dim(1),
                   .inputs = weight.dim(2),
                   .rows = rows,
                   .delayed = state ? state->delayed : fp8::Delayed{}};
  return run("fp8_grouped_linear", p, x, weight, {}, {x.dim(0), weight.dim(1)}, state, later);
}

}  // namespace weft
