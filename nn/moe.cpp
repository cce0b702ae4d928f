#include "weft/nn/moe.h"

#include <algorithm>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8_rows.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft::nn {
namespace {

ExpertsOptions experts_options(const MoeOptions& o) {
  return {.activation = o.activation,
          .bias = o.bias,
          .recompute = o.recompute,
          .init = o.init,
          .proj_init = o.proj_init};
}

// The configuration may have been made outside the DeviceScope in which the model is made.
RouterConfig router_config(const MoeOptions& o) {
  RouterConfig c = o.router;
  c.dtype = default_dtype();
  c.device = default_device();
  return c;
}

const MoeOptions& checked(const MoeOptions& o) {
  o.validate();
  return o;
}

}  // namespace

void MoeOptions::validate() const {
  check(experts >= 1, "moe: experts must be at least 1, got {}", experts);
  check(ffn >= 1, "moe: ffn must be at least 1, got {}", ffn);
  check(shared_ffn >= 0, "moe: shared_ffn must be at least 0, got {}", shared_ffn);
  check(shared_ffn > 0 || !shared_gate, "moe: shared_gate needs a shared_ffn");
  check(latent >= 0, "moe: latent must be at least 0, got {}", latent);
  check(alignment >= 0, "moe: alignment must be at least 0, got {}", alignment);
  router.validate(experts);
}

MoE::MoE(std::int64_t dim, const MoeOptions& o)
    : options(checked(o)),
      router(o.experts, dim, router_config(o)),
      experts(o.experts, o.latent ? o.latent : dim, o.ffn, experts_options(o)),
      local_(o.experts, o.alignment) {
  if (o.latent) {
    latent_down.emplace(dim, o.latent, LinearOptions{.bias = false, .init = o.init});
    latent_up.emplace(o.latent, dim, LinearOptions{.bias = false, .init = o.proj_init});
  }
  if (o.shared_ffn)
    shared.emplace(dim, o.shared_ffn, o.shared_gate,
                   MlpOptions{.activation = o.activation,
                              .bias = o.bias,
                              .recompute = o.recompute,
                              .init = o.init,
                              .proj_init = o.proj_init});
}

FixedRows MoE::rows_of_expert(std::int64_t tokens) const {
  const RouterConfig& c = options.router;
  if (!router.is_training() || c.capacity_factor == 0 || !options.pad_to_capacity) return 0;
  const std::int64_t batch = tokens * shard_of(router).tokens.ranks;
  const std::int64_t capacity =
      weft::expert_capacity(batch, options.experts, c.route.topk, c.capacity_factor);
  // A token selects an expert at most once.
  return {std::min(tokens, capacity), std::min(batch, capacity)};
}

FeedForward::Output MoE::operator()(const Tensor& given, const TokenContext& context) const {
  const Packing& packing = context.packing;
  std::int64_t sequences = 1;
  for (int i = 0; i + 2 < given.ndim(); ++i) sequences *= given.dim(i);
  const std::int64_t tokens = given.ndim() > 1 ? sequences * given.dim(-2) : 1;
  // The boundaries were checked for that many tokens. With a part, x is only a part of the row.
  check(!packing.positions.defined() || context.part || packing.positions.numel() == tokens,
        "moe: the packed row must have the {} tokens of x, got {}", tokens,
        packing.positions.defined() ? packing.positions.numel() : 0);
  const Tensor x = reshape(given, {tokens, given.dim(-1)});
  fp8::rename_rows(given, x);
  const Tensor& mask = packing.padding;
  const Tensor padding = mask.defined() ? reshape(mask, {mask.numel()}) : mask;
  auto [routing, loss] = router(x, {.padding = padding,
                                    .sequences = std::max<std::int64_t>(sequences, 1),
                                    .packed = {packing.cu_seqlens, packing.checked()},
                                    .part = context.part});
  const TokenDispatcher& to_experts = dispatcher();
  Dispatch d = to_experts.dispatch_preprocess(latent_down ? (*latent_down)(x) : x, routing,
                                              rows_of_expert(tokens));
  to_experts.token_dispatch(d);
  Tensor always;
  if (shared && shard_of(*this).overlap_shared) always = (*shared)(x);
  DelayedGradients later;
  if (shard_of(*this).delay_gradients) later = DelayedGradients::here({&experts.down, &experts.up});
  to_experts.dispatch_postprocess(d);
  Tensor y = experts(d.tokens, d.probs, d.expert_rows, later);
  y = to_experts.combine_preprocess(y, d);
  y = to_experts.token_combine(y, d);
  y = to_experts.combine_postprocess(y, d);
  if (latent_up) y = (*latent_up)(y);
  if (shared) y = add(y, always.defined() ? always : (*shared)(x));
  return {reshape(y, given.shape()), std::move(loss)};
}

const fp8::LayerState* MoE::fp8_reader() const {
  if (latent_down) return latent_down->fp8_reader();
  // Tokens that stay on their rank are sorted as they are, and so are their codes.
  return &dispatcher() == &local_ ? &experts.fp8_up : nullptr;
}

void MoE::visit(Visitor& v) {
  v("router", router);
  v("experts", experts);
  v("latent_down", latent_down);
  v("latent_up", latent_up);
  v("shared", shared);
}

std::string MoE::describe() const {
  return message("MoE({} experts, {} a token)", options.experts, options.router.route.topk);
}

double MoE::multiply_adds() const {
  double n = static_cast<double>(router.weight.numel()) +
             static_cast<double>(options.router.route.topk) * experts.multiply_adds();
  if (latent_up) n += latent_down->multiply_adds() + latent_up->multiply_adds();
  if (shared) n += shared->multiply_adds();
  return n;
}

}  // namespace weft::nn
