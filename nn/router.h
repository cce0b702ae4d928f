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

/// The tokens over which a balance loss counts the selected experts: this batch, each of its
/// sequences, or all micro-batches of the step so far (and of other ranks).
enum class Balance : std::uint8_t { aux, sequence, global };

struct BalanceLoss {
  Balance scope = Balance::aux;
  double coefficient = 0;  ///< 0: none
};

struct RouterConfig {
  RouterOptions route = {};  ///< scores, groups, scaling; with sinkhorn only topk
  bool bias = false;         ///< of the linear map
  /// A bias per expert, added to scores for the selection only; update_expert_bias() adjusts it.
  bool expert_bias = false;
  std::vector<BalanceLoss> balance = {};
  double z_loss = 0;      ///< coefficient of mean(logsumexp^2)
  bool sinkhorn = false;  ///< while training, select experts from the balanced matrix
  /// While training, an expert takes at most this times tokens * topk / experts, where tokens
  /// excludes padding; 0: no limit. Evaluation drops nothing: otherwise a token would depend on
  /// later ones, and decoding would differ from a full pass.
  double capacity_factor = 0;
  DropPolicy drop = DropPolicy::probability;
  double jitter = 0;           ///< while training, x is multiplied by 1 - jitter .. 1 + jitter
  bool force_balance = false;  ///< for benchmarks: select experts by noise
  double force_bias = 0;       ///< standard deviation of a fixed bias of each expert's noise
  Init init = Init::normal(0.02);
  DType dtype = default_dtype();
  Device device = default_device();

  /// Throws Error that names the first violated rule.
  void validate(std::int64_t experts) const;
};

struct RouterInput {
  Tensor padding = {};  ///< (T) bool; true: padding, in no expert, loss or count
  /// x holds this many sequences of equal length, one after the other.
  std::int64_t sequences = 1;
  /// Or one packed row, whose sequences Balance::sequence then counts.
  PackedTokens packed = {};
  /// x is this part of a batch, `sequences` is 1; `packed` and `padding` describe the whole row.
  std::optional<TokenPart> part = {};
};

/// A router's decision. [[nodiscard]]: dropping `loss` would silently disable balancing.
struct [[nodiscard]] Routed {
  Routing routing;
  Tensor loss;  ///< add it to the mean loss: a scalar; null if there is none or nothing records
};

/// The gate of a mixture of experts: logits = x weight^T in f32 (f64), then route() or
/// route_sinkhorn(), and the losses that balance the load. Losses and token counts are computed
/// only in training while a tape records; a recomputed region counts once.
struct Router : Module {
  RouterConfig config;
  Tensor weight;  // (experts, dim)
  Tensor bias;    // (experts), or null
  /// (experts), or null; f32 for every model dtype, because it moves in steps of 1e-3.
  Tensor expert_bias;
  // State of the current optimizer step; not saved.
  Tensor tokens_per_expert;  // (experts) i64
  Tensor global_counts;      // (experts) i64: counts of Balance::global; or null
  /// Each loss / coefficient times the non-padding tokens of its micro-batch, summed over
  /// micro-batches; the last element is the sum of these tokens.
  Tensor loss_sums;

  Router(std::int64_t experts, std::int64_t dim, const RouterConfig& config = {});
  /// x (T, dim) -> routing of T tokens
  Routed operator()(const Tensor& x, const RouterInput& input = {}) const;
  std::int64_t experts() const { return weight.dim(0); }
  /// The number of losses with a coefficient: those of `balance` in order, then the z-loss.
  int losses() const;

  void visit(Visitor& v) override;
  std::string describe() const override;
  unsigned shard_members() const override { return Shard::kBatch | Shard::kTokens; }

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
                 const Tensor& padding) const;
  Routing with_room(const Routing& own) const;
  Tensor uneven_share(const Tensor& own, const Tensor& all) const;
  /// This rank's share of a batch's losses: 1 / number of ranks that share its tokens.
  double loss_share() const { return 1.0 / shard_of(*this).tokens.ranks; }
};

}  // namespace weft::nn
