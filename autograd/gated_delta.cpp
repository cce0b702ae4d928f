#include "weft/autograd/gated_delta.h"

#include <cmath>

#include "weft/autograd/gated_delta_checks.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/kernels/gated_delta.h"

namespace weft {
namespace {

// The CPU computes 16-bit types entirely in f32.
Tensor dense(const Tensor& t) {
  const bool widen = is_half(t.dtype()) && !t.device().is_gpu();
  return contiguous(widen ? cast(t, DType::f32) : t);
}

GatedDeltaSpec spec_of(const Tensor& q, const Tensor& v, const Tensor& cu, double scale) {
  const bool data = cu.defined() && !cu.is_meta();
  return {.all = {.cu_seqlens = data ? cu.data<std::int32_t>() : nullptr,
                  .count = detail::delta_sequences(q, cu),
                  .length = q.dim(1)},
          .tokens = q.dim(0) * q.dim(1),
          .key_heads = q.dim(2),
          .value_heads = v.dim(2),
          .key_dim = q.dim(3),
          .value_dim = v.dim(3),
          .scale = scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(q.dim(3)))};
}

Tensor scratch_for(const GatedDeltaSpec& s, const Tensor& like, std::int64_t on_cpu,
                   std::int64_t on_gpu) {
  const bool gpu = like.device().is_gpu();
  return Tensor::empty({(gpu ? s.slots() : s.all.count) * s.value_heads, gpu ? on_gpu : on_cpu},
                       like.dtype(), like.device());
}

// Sums the gradients of the value heads that share a key head.
Tensor by_key_heads(const Tensor& d, const Tensor& like) {
  const std::int64_t share = d.dim(2) / like.dim(2);
  if (share == 1) return cast(d, like.dtype());
  return cast(sum(d.view({d.dim(0), d.dim(1), like.dim(2), share, d.dim(3)}), {3}), like.dtype());
}

void backward(Backward& b, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
              const Tensor& beta, const Tensor& states, const Tensor& cu, double scale) {
  b.once_differentiable();
  const GatedDeltaSpec s = spec_of(q, v, cu, scale);
  const Tensor wide_q = dense(q), wide_k = dense(k), wide_v = dense(v);
  const Tensor dy = b.dy(0).defined() ? dense(b.dy(0)) : zeros_like(wide_v);
  const Tensor dfinal = b.dy(1).defined() ? contiguous(b.dy(1)) : Tensor();
  const Shape each{q.dim(0), q.dim(1), v.dim(2), q.dim(3)};
  const Tensor dq = Tensor::empty(each, g.dtype(), g.device()), dk = empty_like(dq);
  const Tensor dv = empty_like(wide_v), dg = empty_like(g), dbeta = empty_like(beta);
  const Tensor dstate = Tensor::empty(detail::delta_state_shape(q, v, cu), g.dtype(), g.device());
  const Tensor scratch = scratch_for(s, g, delta_bwd_scratch_cpu(s), delta_bwd_scratch_gpu(s));
  dispatch<cpu::gated_delta_bwd, cuda::gated_delta_bwd>(GatedDeltaBwdIn{.q = wide_q,
                                                                        .k = wide_k,
                                                                        .v = wide_v,
                                                                        .g = g,
                                                                        .beta = beta,
                                                                        .states = states,
                                                                        .dy = dy,
                                                                        .dfinal = dfinal},
                                                        s,
                                                        GatedDeltaBwdOut{.dq = dq,
                                                                         .dk = dk,
                                                                         .dv = dv,
                                                                         .dg = dg,
                                                                         .dbeta = dbeta,
                                                                         .dstate = dstate,
                                                                         .scratch = scratch});
  b.add(0, by_key_heads(dq, q));
  b.add(1, by_key_heads(dk, k));
  b.add(2, cast(dv, v.dtype()));
  b.add(3, dg);
  b.add(4, dbeta);
  b.add(5, dstate);
}

}  // namespace

GatedDelta gated_delta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& given_g,
                       const Tensor& given_beta, const GatedDeltaOptions& o) {
  Tensor cu;
  detail::check_gated_delta("gated_delta", q, k, v, given_g, given_beta, o, cu);
  const Tensor g = contiguous(given_g), beta = contiguous(given_beta);
  const Tensor start = o.state.defined() ? contiguous(o.state) : o.state;
  const GatedDeltaSpec s = spec_of(q, v, cu, o.scale);
  const bool recorded = recording(q, k, v, g, beta, start);
  Tensor y, states;
  const Tensor final = Tensor::empty(detail::delta_state_shape(q, v, cu), g.dtype(), g.device());
  const bool gpu = g.device().is_gpu();
  const bool one_by_one =
      gpu && !recorded && !cu.defined() && q.dim(1) > 0 && q.dim(1) <= kDeltaStep;
  if (recorded || (gpu && !one_by_one))
    states =
        Tensor::empty({s.slots(), s.value_heads, s.key_dim, s.value_dim}, g.dtype(), g.device());
  {
    const NoGradGuard quiet;
    const Tensor wide_v = dense(v), wide_y = empty_like(wide_v);
    Tensor scratch;
    if (!one_by_one)
      scratch = scratch_for(s, g, delta_fwd_scratch_cpu(s), delta_fwd_scratch_gpu(s));
    dispatch<cpu::gated_delta_fwd, cuda::gated_delta_fwd>(
        GatedDeltaFwdIn{
            .q = dense(q), .k = dense(k), .v = wide_v, .g = g, .beta = beta, .state = start},
        s, GatedDeltaFwdOut{.states = states, .y = wide_y, .final = final, .scratch = scratch});
    y = cast(wide_y, v.dtype());
  }
  if (recorded)
    Tape::record("gated_delta", {&q, &k, &v, &g, &beta, &start}, {&y, &final},
                 [scale = o.scale, sq = save(q, "q"), sk = save(k, "k"), sv = save(v, "v"),
                  sg = save(g, "g"), sb = save(beta, "beta"), ss = save(states, "states"),
                  sc = save(cu, "cu_seqlens")](Backward& b) {
                   backward(b, sq.get(), sk.get(), sv.get(), sg.get(), sb.get(), ss.get(), sc.get(),
                            scale);
                 });
  return {y, final};
}

}  // namespace weft
