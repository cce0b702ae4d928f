#pragma once
#include <vector>

#include "weft/autograd/expert_capacity.h"
#include "weft/autograd/router.h"
#include "weft/autograd/router_loss.h"
#include "weft/core/fields.h"
#include "weft/nn/module.h"
#include "weft/nn/shard.h"
#include "weft/nn/token_context.h"

namespace weft::nn {

inline constexpr Word<RouterScore> kRouterScoreWords[] = {
    {"softmax", RouterScore::softmax},
    {"sigmoid", RouterScore::sigmoid},
    {"sqrt-softplus", RouterScore::sqrt_softplus}};

inline constexpr Word<DropPolicy> kDropPolicyWords[] = {{"probability", DropPolicy::probability},
                                                        {"position", DropPolicy::position}};

/// Over which tokens a balance loss counts how often an expert was chosen: this batch, each of its
/// sequences, or all micro-batches of the step so far (and of other ranks).
enum class Balance : std::uint8_t { aux, sequence, global };

struct BalanceLoss {
  Balance scope = Balance::aux;
  double coefficient = 0;  ///< 0: none
};

struct RouterConfig {
  RouterOptions route = {};  ///< scores, groups, scaling; with sinkhorn only topk
  bool bias = false;         ///< of the linear map
  /// A number an expert that is added to scores for the choice only; update_expert_bias() moves it.
  bool expert_bias = false;
  std::vector<BalanceLoss> balance = {};
  double z_loss = 0;      ///< coefficient of mean(logsumexp^2)
  bool sinkhorn = false;  ///< while training, experts are chosen from the balanced matrix
  /// While training, an expert takes at most tokens * topk / experts times this, of the tokens of
  /// the batch that are no padding; 0: nothing is dropped. Evaluation drops nothing: an earlier
  /// token would depend on later ones, and decoding would differ from the whole pass.
  double capacity_factor = 0;
  DropPolicy drop = DropPolicy::probability;
  double jitter = 0;           ///< while training, x is multiplied by 1 - jitter .. 1 + jitter
  bool force_balance = false;  ///< benchmarks: choose by noise
  double force_bias = 0;       ///< standard deviation of a fixed bias of each expert's noise
  Init init = Init::normal(0.02);
  DType dtype = default_dtype();
  Device device = default_device();

  /// Throws Error with the first rule that does not hold.
  void validate(std::int64_t experts) const;
};

struct RouterInput {
  Tensor padding = {};  ///< (T) bool; true: routed nowhere, in no loss and no count
  /// x holds this many sequences of equal length, one after another.
  std::int64_t sequences = 1;
  /// Or one row of sequences, by which Balance::sequence counts then.
  PackedTokens packed = {};
  /// x is this part of the batch, and `sequences` must be 1. `packed` and `padding` are those of
  /// the whole row.
  std::optional<TokenPart> part = {};
};

/// What a router decided. Dropping `loss` would switch balancing off without a word.
struct [[nodiscard]] Routed {
  Routing routing;
  Tensor loss;  ///< to be added to the mean loss: a scalar; null without any, or nothing recorded
};

/// The gate of a mixture of experts: logits = x weight^T in f32 (f64), then route(), or
/// route_sinkhorn(), and the losses that keep the load even. In training, and only where a tape
/// records, losses are made and tokens counted; a region that is recomputed counts once.
struct Router : Module {
  RouterConfig config;
  Tensor weight;  // (experts, dim)
  Tensor bias;    // (experts), or null
  /// (experts) f32 whatever the model's dtype: it moves in steps of 1e-3; or null
  Tensor expert_bias;
  // Of the present optimizer step, and not saved.
  Tensor tokens_per_expert;  // (experts) i64
  Tensor global_counts;      // (experts) i64: what Balance::global counted; or null
  /// Each loss / coefficient, summed over micro-batches, and at the end their number.
  Tensor loss_sums;

  Router(std::int64_t experts, std::int64_t dim, const RouterConfig& config = {});
  /// x (T, dim) -> T routings
  Routed operator()(const Tensor& x, const RouterInput& input = {}) const;
  std::int64_t experts() const { return weight.dim(0); }
  /// How many losses have a coefficient: those of `balance` in order, then the z-loss.
  int losses() const;

  void visit(Visitor& v) override;
  std::string describe() const override;
  unsigned shard_members() const override { return Shard::kBatch | Shard::kTokens; }
  Router like() const;

 private:
  Tensor logits_of(const Tensor& x, const RouterInput& input) const;
  void count_whole_sequences(const Tensor& counts, const TokenPart& part) const;
  Tensor chosen(const Tensor& logits, const Routing& routing, const RouterInput& input,
                std::int64_t parts, const PackedTokens& packed) const;
  Tensor count_for_step(const Tensor& logits, const Routing& routing,
                        const RouterInput& input) const;
  Tensor counts_of(const BalanceLoss& l, const Tensor& logits, const Routing& routing,
                   const RouterInput& input) const;
  Tensor loss_of(const Tensor& logits, const Routing& routing, const RouterInput& in,
                 const Tensor& weight_here) const;
  Routing with_room(const Routing& own) const;
  Tensor uneven_share(const Tensor& own, const Tensor& all) const;
  /// The part of a batch's losses that this rank adds: one over the ranks that share its tokens.
  double loss_share() const { return 1.0 / shard_of(*this).tokens.ranks; }
};

}  // namespace weft::nn
