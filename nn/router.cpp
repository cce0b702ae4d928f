#include "weft/nn/router.h"

#include <cmath>
#include <numeric>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/router_gate.h"
#include "weft/autograd/router_loss.h"
#include "weft/autograd/router_noise.h"
#include "weft/autograd/sinkhorn.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/core/random.h"

namespace weft::nn {
namespace {

// Random streams, as offsets to the module's stream.
constexpr std::uint64_t kJitterStream = 1, kNoiseStream = 2, kForcedBiasStream = 3;

constexpr const char* kScopes[] = {"aux", "sequence", "global"};

Tensor plus(const Tensor& a, const Tensor& b) { return a.defined() ? add(a, b) : b; }

// The number of non-padding tokens, f64.
Tensor counted(const Tensor& padding) {
  return sub(static_cast<double>(padding.numel()), sum(padding.to(DType::f64)));
}

// The part of a batch that the `tokens` of a call are; null if they are whole sequences.
const TokenPart* part_of_batch(const RouterInput& in, std::int64_t tokens) {
  const bool is_part = in.part && in.sequences == 1 && in.part->count == tokens && tokens > 0;
  return is_part ? &*in.part : nullptr;
}

// Restricts the packing and padding of a whole row to the part that the `tokens` of a call are.
RouterInput here(RouterInput in, std::int64_t tokens) {
  const TokenPart* part = part_of_batch(in, tokens);
  if (!part) return in;
  if (in.padding.defined() && in.padding.dim(0) != tokens)
    in.padding = in.padding.narrow(0, part->first, tokens);
  Tensor& cu = in.packed.cu_seqlens;
  if (cu.defined())
    cu =
        minimum(maximum(sub(cu, static_cast<double>(part->first)), 0), static_cast<double>(tokens));
  return in;
}

}  // namespace

void RouterConfig::validate(std::int64_t experts) const {
  const auto share = [](const char* what, double v) {
    check(v >= 0 && std::isfinite(v), "router: {} must be at least 0, got {}", what, v);
  };
  share("z_loss", z_loss);
  share("capacity_factor", capacity_factor);
  share("force_bias", force_bias);
  check(jitter >= 0 && jitter < 1, "router: jitter must be in [0, 1), got {}", jitter);
  check(force_bias == 0 || force_balance, "router: force_bias {} needs force_balance", force_bias);
  int scopes = 0;
  for (const BalanceLoss& l : balance) {
    const int scope = 1 << static_cast<int>(l.scope);
    check((scopes & scope) == 0, "router: balance may name each scope once, got {} twice",
          kScopes[static_cast<std::size_t>(l.scope)]);
    scopes |= scope;
    share("a balance coefficient", l.coefficient);
    check(
        !sinkhorn || l.coefficient == 0,
        "router: sinkhorn balances by itself; the coefficient of a balance loss must be 0, got {}",
        l.coefficient);
  }
  if (!sinkhorn) return weft::detail::check_router("router", experts, route, expert_bias);
  check(capacity_factor == 0,
        "router: sinkhorn drops nothing; capacity_factor must be 0 with it, got {}",
        capacity_factor);
  check(!expert_bias, "router: sinkhorn balances by itself; expert_bias must be false with it");
  check(route.score == RouterScore::softmax && !route.pre_softmax && route.scaling == 1 &&
            route.groups == 0,
        "router: sinkhorn has its own scores; of route, only topk may be set");
  weft::detail::check_router("router", experts, {.topk = route.topk, .pre_softmax = true}, false);
}

Router::Router(std::int64_t count, std::int64_t dim, const RouterConfig& c) : config(c) {
  check(dim >= 1, "router: dim must be at least 1, got {}", dim);
  config.validate(count);
  weight = make_parameter({count, dim}, config.init, config.dtype, config.device);
  if (config.bias) bias = make_parameter({count}, Init::constant(0), config.dtype, config.device);
  const auto zeros = [&](const Shape& s, DType t) { return Tensor::zeros(s, t, config.device); };
  if (config.expert_bias) expert_bias = zeros({count}, DType::f32);
  tokens_per_expert = zeros({count}, DType::i64);
  for (const BalanceLoss& l : config.balance)
    if (l.scope == Balance::global && l.coefficient > 0) global_counts = zeros({count}, DType::i64);
  if (losses() > 0)
    loss_sums = zeros({losses() + 1}, config.dtype == DType::f64 ? DType::f64 : DType::f32);
}

int Router::losses() const {
  int n = config.z_loss > 0;
  for (const BalanceLoss& l : config.balance) n += l.coefficient > 0;
  return n;
}

Tensor Router::logits_of(const Tensor& input, const RouterInput& in) const {
  const auto key = [&](std::uint64_t stream_number, std::int64_t width) {
    const TokenPart* part = part_of_batch(in, input.dim(0));
    const std::int64_t length =
        part ? part->tokens : input.dim(0) / std::max<std::int64_t>(in.sequences, 1);
    RandomKey k = RandomScope::key_for(random_stream() + stream_number,
                                       static_cast<std::uint64_t>(length * width),
                                       static_cast<std::uint64_t>(width));
    if (part) k.first += static_cast<std::uint64_t>(part->first * width);
    return k;
  };
  Tensor x = input;
  if (is_training() && config.jitter > 0 && x.defined() && x.ndim() == 2)
    x = jitter(x, config.jitter, key(kJitterStream, x.dim(1)));
  const Tensor logits = router_logits(x, weight, bias);
  if (!config.force_balance) return logits;
  Tensor uneven;
  if (config.force_bias > 0) {
    const RandomState* scope = RandomScope::current();
    uneven = Tensor::empty({experts()}, logits.dtype(), logits.device());
    normal_(uneven, {scope ? scope->seed : 0, stream() + kForcedBiasStream, 0}, 0,
            config.force_bias);
  }
  return random_logits(logits, key(kNoiseStream, experts()), uneven);
}

// Replaces the counts of slices of this rank's tokens, each inside one sequence, by the counts of
// the whole sequences that they belong to.
void Router::count_whole_sequences(const Tensor& counts, const TokenPart& part) const {
  const std::int64_t pieces = counts.dim(0), length = part.count / pieces;
  const Tensor whole = Tensor::zeros({part.sequences, experts()}, DType::i64, counts.device());
  const auto sequence_of = [&](std::int64_t piece) {
    return whole.select(0, (part.first + piece * length) / part.tokens);
  };
  for (std::int64_t i = 0; i < pieces; ++i) sequence_of(i).add_(counts.select(0, i));
  if (const auto& sum = shard_of(*this).sum_batch) sum(whole);
  for (std::int64_t i = 0; i < pieces; ++i) counts.select(0, i).copy_(sequence_of(i));
}

Tensor Router::chosen(const Tensor& logits, const Routing& routing, const RouterInput& in,
                      std::int64_t parts, const PackedTokens& packed) const {
  // Without bias and groups, the selected experts are those with the largest logits.
  return expert_bias.defined() || config.route.groups > 0
             ? count_top_experts(logits, config.route.topk, parts, in.padding, packed)
             : count_experts(routing.experts, experts(), parts, packed);
}

// Counts over all micro-batches of the step so far, including this one.
Tensor Router::count_for_step(const Tensor& logits, const Routing& routing,
                              const RouterInput& in) const {
  const Tensor counts = chosen(logits, routing, in, 1, {});
  if (const auto& sum = shard_of(*this).sum_all) sum(counts);
  global_counts.add_(counts.view({experts()}));
  return clone(global_counts).view({1, experts()});
}

Tensor Router::counts_of(const BalanceLoss& l, const Tensor& logits, const Routing& routing,
                         const RouterInput& in) const {
  if (l.scope == Balance::global)
    // Other micro-batches or depths may count between the passes of a recomputed region.
    return first_pass_value([&] { return count_for_step(logits, routing, in); });
  const bool by_sequence = l.scope == Balance::sequence;
  const PackedTokens packed = by_sequence ? in.packed : PackedTokens{};
  const TokenPart* part =
      by_sequence && !packed.cu_seqlens.defined() ? part_of_batch(in, logits.dim(0)) : nullptr;
  const std::int64_t parts = part          ? part->count / std::gcd(part->tokens, part->count)
                             : by_sequence ? in.sequences
                                           : 1;
  const Tensor counts = chosen(logits, routing, in, parts, packed);
  if (part)
    count_whole_sequences(counts, *part);
  else if (const auto& sum = shard_of(*this).sum_batch)
    sum(counts);
  return counts;
}

// `padding` is that of the batch, of which `in` may be a part.
Tensor Router::loss_of(const Tensor& logits, const Routing& routing, const RouterInput& in,
                       const Tensor& padding) const {
  if (losses() == 0) return {};
  const Tensor weight_here = uneven_share(in.padding, padding);
  Tensor tokens;  // of the batch; a recomputed region counts once
  if (!recomputing())
    tokens = padding.defined() ? counted(padding).to(loss_sums.dtype())
                               : Tensor::full({}, static_cast<double>(logits.dim(0)) / loss_share(),
                                              loss_sums.dtype(), logits.device());
  Tensor total;
  int number = 0;
  const auto include = [&](Tensor loss, double coefficient) {
    if (weight_here.defined()) loss = mul(loss, weight_here.to(loss.dtype()));
    total = plus(total, loss);
    if (tokens.defined())
      loss_sums.select(0, number).add_(mul(loss.detach(), tokens), 1 / coefficient);
    ++number;
  };
  for (const BalanceLoss& l : config.balance)
    if (const double c = l.coefficient * loss_share(); c > 0)
      include(balance_loss(logits, counts_of(l, logits, routing, in), config.route.score, c,
                           in.padding, l.scope == Balance::sequence ? in.packed : PackedTokens{}),
              c);
  if (const double c = config.z_loss * loss_share(); c > 0)
    include(z_loss(logits, c, in.padding), c);
  if (tokens.defined()) loss_sums.select(0, number).add_(tokens);
  return total;
}

// Ranks hold equally many tokens but may differ in padding. The factor that weights this rank by
// its non-padding tokens, relative to loss_share(); null without padding or on one rank.
Tensor Router::uneven_share(const Tensor& own, const Tensor& all) const {
  if (!own.defined() || own.numel() == all.numel()) return {};
  return mul(div(counted(own), maximum(counted(all), 1)), 1 / loss_share());
}

// Drops slots above capacity. The decision depends on all tokens of the batch, on other ranks too.
Routing Router::with_room(const Routing& own) const {
  const auto keep = [&](const Routing& r) {
    return limit_capacity_factor(r, experts(), config.capacity_factor, config.drop);
  };
  const Shard& s = shard_of(*this);
  if (!s.gather_batch) return keep(own);
  // A token selects an expert at most once, so no expert can exceed this capacity.
  if (config.capacity_factor * static_cast<double>(config.route.topk) >=
      static_cast<double>(experts()))
    return own;
  const std::int64_t tokens = own.experts.dim(0);
  Tensor kept;
  {
    const NoGradGuard choosing;
    const Routing all{s.gather_batch(own.probs), s.gather_batch(own.experts)};
    kept = keep(all).experts.narrow(0, s.tokens.rank * tokens, tokens).clone();
  }
  const Tensor none = Tensor::zeros({}, own.probs.dtype(), own.probs.device());
  return {where(ge(kept, 0.0), own.probs, none), kept};
}

Routed Router::operator()(const Tensor& x, const RouterInput& given) const {
  const Tensor logits = logits_of(x, given);
  const RouterInput in = here(given, logits.dim(0));
  Routed out;
  out.routing = config.sinkhorn
                    ? route_sinkhorn(logits, config.route.topk, is_training(), in.padding)
                    : route(logits, expert_bias, config.route, in.padding);
  const bool learns = is_training() && recording(logits);
  if (learns) out.loss = loss_of(logits, out.routing, in, given.padding);
  if (is_training() && config.capacity_factor > 0) out.routing = with_room(out.routing);
  if (learns && !recomputing())
    tokens_per_expert.add_(count_experts(out.routing.experts, experts()).view({experts()}));
  return out;
}

void Router::visit(Visitor& v) {
  v("weight", weight, config.init);
  v("bias", bias, Init::constant(0));
  v("expert_bias", pinned(buffer(expert_bias)));
  v("tokens_per_expert", pinned(table(tokens_per_expert)));
  v("global_counts", pinned(table(global_counts)));
  v("loss_sums", table(loss_sums));
}

std::string Router::describe() const {
  return message("Router({} -> {} of {}{})", weight.dim(1), config.route.topk, experts(),
                 expert_bias.defined() ? ", expert bias" : "");
}

}  // namespace weft::nn
