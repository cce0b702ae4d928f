#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/gated_delta_checks.h"
#include "weft/autograd/matmul.h"

namespace weft {
namespace detail {

void check_gated_delta(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& g, const Tensor& beta, const GatedDeltaOptions& o,
                       Tensor& cu) {
  check_tensor(op, "q", q);
  check_tensor(op, "k", k);
  check_tensor(op, "v", v);
  check_tensor(op, "g", g);
  check_tensor(op, "beta", beta);
  if (!is_compute(q.dtype())) throw_bad_dtype(op, q.dtype(), kFloatingNames);
  check(q.ndim() == 4 && k.shape() == q.shape(),
        "{}: q and k must have one shape (batch, tokens, key heads, key dim), got {} and {}", op,
        q.shape(), k.shape());
  check(v.ndim() == 4 && v.dim(0) == q.dim(0) && v.dim(1) == q.dim(1),
        "{}: v must have shape (batch {}, tokens {}, value heads, value dim), got {}", op, q.dim(0),
        q.dim(1), v.shape());
  check(q.dim(2) > 0 && v.dim(2) > 0 && v.dim(2) % q.dim(2) == 0,
        "{}: value heads {} must be a multiple of key heads {}", op, v.dim(2), q.dim(2));
  check(q.dim(3) > 0 && v.dim(3) > 0, "{}: key dim and value dim must be at least 1, got {} and {}",
        op, q.dim(3), v.dim(3));
  const Shape gates{v.dim(0), v.dim(1), v.dim(2)};
  check(g.shape() == gates && beta.shape() == gates,
        "{}: g and beta must have shape {}, got {} and {}", op, gates, g.shape(), beta.shape());
  check(k.dtype() == q.dtype() && v.dtype() == q.dtype(),
        "{}: q, k and v must have one dtype, got {}, {} and {}", op, q.dtype(), k.dtype(),
        v.dtype());
  const DType real = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  check(g.dtype() == real && beta.dtype() == real,
        "{}: g and beta must have dtype {} with q {}, got {} and {}", op, real, q.dtype(),
        g.dtype(), beta.dtype());
  for (const Tensor* t : {&k, &v, &g, &beta})
    check(t->device() == q.device(), "{}: all operands must be on device {} like q, got {}", op,
          q.device(), t->device());
  if (o.cu_seqlens.defined()) {
    check(q.dim(0) == 1, "{}: with cu_seqlens q must be one row, got {}", op, q.shape());
    cu = checked_cu_seqlens(op, o.cu_seqlens, "q", q, o.cu_checked);
  }
  if (o.state.defined()) {
    const Shape expected = delta_state_shape(q, v, cu);
    check(o.state.shape() == expected && o.state.dtype() == real && o.state.device() == q.device(),
          "{}: state must be {} {} on {}, got {} {} on {}", op, real, expected, q.device(),
          o.state.dtype(), o.state.shape(), o.state.device());
  }
}

}  // namespace detail

namespace {

struct Operands {
  Tensor q, k, v, decay, beta;  // (B, T, Hv, K or V or 1)

  // One token, as (B, Hv, K or V or 1, 1).
  static Tensor column(const Tensor& x, std::int64_t t) { return x.select(1, t).unsqueeze(-1); }

  // Runs tokens [begin, end) from `state` (B, Hv, K, V), and leaves the final state there.
  void run(std::int64_t begin, std::int64_t end, double scale, Tensor& state,
           TensorList& out) const {
    for (std::int64_t t = begin; t < end; ++t) {
      const Tensor key = column(k, t);
      state = mul(state, column(decay, t));
      const Tensor found = matmul(state.t(), key);
      const Tensor update = mul(sub(column(v, t), found), column(beta, t));
      state = add(state, matmul(key, update.t()));
      out.push_back(mul(matmul(state.t(), column(q, t)), scale).squeeze(-1));
    }
  }
};

Tensor repeat_heads(const Tensor& x, std::int64_t share) {
  const Shape& s = x.shape();
  return x.unsqueeze(3).expand({s[0], s[1], s[2], share, s[3]}).reshape({s[0], s[1], -1, s[3]});
}

}  // namespace

GatedDelta gated_delta_recurrent(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                                 const Tensor& beta, const GatedDeltaOptions& o) {
  Tensor cu;
  detail::check_gated_delta("gated_delta_recurrent", q, k, v, g, beta, o, cu);
  const DType real = g.dtype();
  const std::int64_t share = v.dim(2) / q.dim(2);
  const Operands in{repeat_heads(cast(q, real), share), repeat_heads(cast(k, real), share),
                    cast(v, real), exp(g).unsqueeze(-1), beta.unsqueeze(-1)};
  const double scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<double>(q.dim(3)));
  Tensor states = o.state;
  if (!states.defined())
    states = Tensor::zeros(detail::delta_state_shape(q, v, cu), real, q.device());
  if (q.is_meta()) return {empty_like(v), empty_like(states)};

  TensorList out;
  if (!cu.defined()) {
    in.run(0, q.dim(1), scale, states, out);
  } else {
    const Tensor borders = cu.to(kCpu);
    const std::int32_t* border = borders.data<std::int32_t>();
    TensorList after;
    for (std::int64_t i = 0; i + 1 < cu.dim(0); ++i) {
      Tensor state = states.narrow(0, i, 1);
      in.run(border[i], border[i + 1], scale, state, out);
      after.push_back(state);
    }
    if (!after.empty()) states = cat(after, 0);
  }
  const Tensor y = out.empty() ? zeros_like(v) : cast(stack(out, 1), v.dtype());
  return {y, states};
}

}  // namespace weft
