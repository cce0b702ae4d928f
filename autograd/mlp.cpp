#include "weft/autograd/mlp.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/linear_common.h"
#include "weft/autograd/operand.h"
#include "weft/core/error.h"
#include "weft/core/kernels/copy.h"
#include "weft/core/kernels/swiglu.h"

namespace weft {

using namespace detail;

namespace {

// Which kernels there are: GELU in the epilogue of a product, or SwiGLU into a given tensor.
bool is_tanh(Activation a) { return a == Activation::gelu_tanh; }
bool is_gelu(Activation a) { return is_tanh(a) || a == Activation::gelu_erf; }
bool is_swiglu(Activation a) { return a == Activation::swiglu; }

void check_operand(const char* name, const Tensor& t, const Tensor& x, const Shape& shape) {
  check(t.shape() == shape, "mlp: {} must have shape {}, got {}", name, shape, t.shape());
  check(t.dtype() == x.dtype(), "mlp: {} must have the dtype of x, {}, got {}", name, x.dtype(),
        t.dtype());
  check(t.device() == x.device(), "mlp: {} must be on the device of x, {}, got {}", name,
        x.device(), t.device());
}

void check_operands(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
                    const Tensor& down_bias, Activation activation) {
  check_tensor("mlp", "x", x);
  check_tensor("mlp", "up", up);
  check_tensor("mlp", "down", down);
  check(x.ndim() >= 1, "mlp: x must have at least 1 axis, got shape {}", x.shape());
  if (!is_compute(x.dtype())) throw_bad_dtype("mlp", x.dtype(), kFloatingNames);
  check(up.ndim() == 2 && down.ndim() == 2, "mlp: up and down must have 2 axes, got {} and {}",
        up.shape(), down.shape());
  const std::int64_t width = down.dim(1) * (is_gated(activation) ? 2 : 1);
  check_operand("up", up, x, {width, x.dim(-1)});
  check_operand("down", down, x, {down.dim(0), down.dim(1)});
  if (up_bias.defined()) check_operand("up_bias", up_bias, x, {width});
  if (down_bias.defined()) check_operand("down_bias", down_bias, x, {down.dim(0)});
}

Tensor composed(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
                const Tensor& down_bias, Activation kind) {
  return linear(activation(linear(x, up, up_bias), kind), down, down_bias);
}

// Writes to `act`, if not null; null or not, it holds the activated layer then.
void activate(const Tensor& hidden, Activation kind, Tensor& act) {
  if (is_swiglu(kind))
    dispatch<cpu::swiglu_fwd, cuda::swiglu_fwd>(hidden, Tensor(), act);
  else if (is_gelu(kind))
    dispatch<cpu::unary, cuda::unary>(hidden,
                                      is_tanh(kind) ? UnaryOp::gelu_tanh : UnaryOp::gelu_erf, act);
  else
    act = activation(hidden, kind);
}

/// The hidden layer before and after its activation.
struct Hidden {
  Tensor before, behind;
};

// On a GPU cuBLASLt may choose another kernel when it does not also write the layer before the
// activation. Both passes of a recomputed region must give the same bits, so both write it.
bool keeps(const Tensor& x, bool recorded) {
  return recorded && (!Tape::counting() || x.device().is_gpu());
}

// Without `keep` GELU runs in place and `before` is null, or need not be kept. `again`: backward
// will activate the stored, rounded `before`, so forward must not fuse GELU, which would activate
// unrounded sums.
Hidden hidden_layer(const Tensor& x, const Tensor& up, const Tensor& bias, std::int64_t features,
                    Activation kind, bool keep, bool again) {
  const auto matrix = [&](std::int64_t cols) {
    return Tensor::empty({x.dim(0), cols}, x.dtype(), x.device());
  };
  Hidden h;
  if (is_gelu(kind) || is_swiglu(kind)) h.behind = matrix(features);
  if (keep || !is_gelu(kind)) h.before = matrix(up.dim(0));
  if (is_gelu(kind) && !again && fuses_gelu(x, up, bias, is_tanh(kind))) {
    count_product(h.behind.numel(), x.dim(1));
    dispatch<cpu::gemm_gelu, cuda::gemm_gelu>(x, up, bias, is_tanh(kind), h.before, h.behind);
  } else {
    const Tensor sums = h.before.defined() ? h.before : h.behind;
    gemm_bias(x, up, bias, sums);
    activate(sums, kind, h.behind);
  }
  return h;
}

/// The operands of backward; dy (M, N) is contiguous.
struct Parts {
  Tensor dy, up, down;
  Activation activation;
};

/// The buffer of t, which is no longer read, for a result; a new one if an outer tape holds t too.
Tensor reused(const Tensor& t) { return t.impl()->refs.load() == 1 ? t : empty_like(t); }

Tensor swiglu_gradient(Backward& b, const Parts& p, Tensor before, Tensor* behind, bool own_bias) {
  const Tensor out = reused(before);
  const Tensor grad =
      Tensor::empty({before.dim(0), p.down.dim(1)}, before.dtype(), before.device());
  gemm(p.dy, p.down, grad);
  if (behind) {
    *behind = empty_like(grad);
    activate(before, p.activation, *behind);
  }
  dispatch<cpu::swiglu_bwd, cuda::swiglu_bwd>(before, Tensor(), grad, out, Tensor());
  if (own_bias) add_bias_gradient(b, 2, out);
  return out;
}

Tensor composed_gradient(Backward& b, const Parts& p, const Tensor& before, Tensor* behind,
                         bool own_bias) {
  const Tensor grad =
      Tensor::empty({before.dim(0), p.down.dim(1)}, before.dtype(), before.device());
  gemm(p.dy, p.down, grad);
  const Tensor x = before.detach().set_requires_grad();
  Tape again;
  const Tensor act = row_of(p.activation).composed(x);
  const Tensor out = contiguous(again.gradients(act, {x}, grad)[0]);
  if (behind) *behind = act.detach();
  if (own_bias) add_bias_gradient(b, 2, out);
  return out;
}

// The gradient of the hidden layer before its activation. Writes the activated layer to `behind`,
// if not null. `own_bias`: adds the gradient of its bias too.
Tensor hidden_gradient(Backward& b, const Parts& p, Tensor before, Tensor* behind, bool own_bias) {
  if (is_swiglu(p.activation)) return swiglu_gradient(b, p, std::move(before), behind, own_bias);
  if (!is_gelu(p.activation)) return composed_gradient(b, p, before, behind, own_bias);
  const std::int64_t rows = before.dim(0), features = before.dim(1);
  const Device device = before.device();
  if (behind) *behind = reused(before);
  const Tensor grad = empty_like(before);
  // The product's epilogue on a GPU writes the sum of the rows in the dtype of `grad`; a wider sum
  // takes a pass of its own.
  const bool wide_bias =
      own_bias && device.is_gpu() && b.sum_dtype(2, before.dtype()) != before.dtype();
  ParameterGradient dbias;
  if (own_bias && !wide_bias) dbias = {b, 2, {features}, before};
  if (grad.numel() == 0 || p.dy.numel() == 0) {
    for (const Tensor& t : {grad, dbias.to})
      if (t.defined()) dispatch<cpu::fill, cuda::fill>(t, 0.0);
    if (behind) activate(before, p.activation, *behind);
  } else {
    Tensor partial;
    if (dbias.to.defined())
      partial = Tensor::empty({epilogue_partial(rows, features, device)}, DType::f64, device);
    const Tensor scratch =
        f32_scratch(gemm_scratch(gelu_bwd_shape(p.dy, p.down), p.dy.dtype(), device), device);
    count_product(grad.numel(), p.dy.dim(1));
    dispatch<cpu::gemm_gelu_bwd, cuda::gemm_gelu_bwd>(
        GemmGeluBwdIn{
            .dy = p.dy, .weight = p.down, .hidden = before, .tanh = is_tanh(p.activation)},
        GemmGeluBwdOut{.dhidden = grad,
                       .dbias = dbias.to,
                       .act = behind ? *behind : Tensor(),
                       .scratch = scratch,
                       .partial = partial});
  }
  dbias.give(b);
  if (wide_bias) add_bias_gradient(b, 2, grad);
  return grad;
}

// Releases each array right after the last product that reads it, and takes x, which may have to be
// computed again, only for its own product.
void backward(Backward& b, const Parts& p, Saved& saved_x, Tensor before, Tensor behind) {
  const bool again = !behind.defined(), weights = b.needs(3) || b.needs(4);
  if (!again && weights) add_linear_gradients(b, 3, 4, p.dy, behind);
  behind = {};
  if (b.needs(0) || b.needs(1) || b.needs(2) || (again && weights)) {
    // The epilogue that sums the rows of `grad` rounds to 16 bits; that of the weight's product
    // does not.
    const bool product_has_bias = p.dy.device().is_gpu() && b.needs(1) && b.needs(2) &&
                                  b.sum_dtype(2, p.dy.dtype()) != p.dy.dtype();
    const Tensor grad = hidden_gradient(b, p, std::move(before),
                                        again && weights ? &behind : nullptr, !product_has_bias);
    if (behind.defined()) add_linear_gradients(b, 3, 4, p.dy, behind);
    behind = {};
    if (b.needs(1)) {
      const Tensor x = contiguous(as_matrix(saved_x.take()));
      if (product_has_bias)
        add_linear_gradients(b, 1, 2, grad, x);
      else
        add_weight_gradient(b, 1, grad, x);
    }
    if (b.needs(0)) {
      Shape shape = b.dy().shape();
      shape[shape.size() - 1] = p.up.dim(1);
      b.add(0, reshape(matmul(grad, p.up), shape));
    }
  }
}

}  // namespace

Tensor mlp(const Tensor& x, const Tensor& up, const Tensor& up_bias, const Tensor& down,
           const Tensor& down_bias, const MlpOptions& o) {
  check_operands(x, up, up_bias, down, down_bias, o.activation);
  const bool recorded = recording(x, up, up_bias, down, down_bias);
  Shape shape = x.shape();
  shape[shape.size() - 1] = down.dim(0);
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  Hidden h;
  {
    const NoGradGuard quiet;
    h = hidden_layer(contiguous(as_matrix(x)), contiguous(up), up_bias, down.dim(1), o.activation,
                     keeps(x, recorded), o.recompute && x.device().is_gpu());
    gemm_bias(h.behind, down, down_bias, as_matrix(y));
  }
  if (!recorded) return y;
  if (o.recompute) h.behind = {};
  Tape::record(
      "mlp", {&x, &up, &up_bias, &down, &down_bias}, {&y},
      [sx = save(x, "x"), su = save(up, "up"), sub = save(up_bias, "up_bias"),
       sd = save(down, "down"), sdb = save(down_bias, "down_bias"),
       before = save(h.before, "hidden"), behind = save(h.behind, "activated"),
       activation = o.activation](Backward& b) mutable {
        if (Tape::current()) {  // an outer tape records public ops
          const Tensor* operands[] = {&sx.get(), &su.get(), &sub.get(), &sd.get(), &sdb.get()};
          Tape again;
          const Tensor out = composed(*operands[0], *operands[1], *operands[2], *operands[3],
                                      *operands[4], activation);
          // An operand that is passed twice has one gradient: the sum of both uses.
          const auto first_place = [&](int i) {
            for (int j = 0; j < i; ++j)
              if (operands[j]->same(*operands[i])) return false;
            return b.needs(i);
          };
          TensorList wanted;
          for (int i = 0; i < 5; ++i)
            if (first_place(i)) wanted.push_back(*operands[i]);
          const TensorList found = again.gradients(out, wanted, b.dy());
          int next = 0;
          for (int i = 0; i < 5; ++i)
            if (first_place(i)) b.add(i, found[next++]);
          return;
        }
        const Parts p{contiguous(as_matrix(b.dy())), contiguous(su.get()), contiguous(sd.get()),
                      activation};
        backward(b, p, sx, before.take(), behind.take());
      });
  return y;
}

}  // namespace weft
