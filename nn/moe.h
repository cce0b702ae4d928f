#pragma once
#include <memory>

#include "weft/nn/experts.h"
#include "weft/nn/router.h"
#include "weft/nn/token_dispatcher.h"

namespace weft::nn {

struct MoeOptions {
  std::int64_t experts = 0;
  RouterConfig router = {};
  std::int64_t ffn = 0;  ///< width of one expert
  Activation activation = Activation::swiglu;
  bool bias = false;            ///< of the experts and the shared expert
  std::int64_t shared_ffn = 0;  ///< width of an MLP that every token goes through; 0: none
  bool shared_gate = false;     ///< multiply its output by sigmoid(x . w)
  std::int64_t latent = 0;      ///< width of the experts' input and output; 0: the model's
  /// Used in training with router.capacity_factor: every expert gets exactly its capacity of rows,
  /// padded if too few tokens chose it. All shapes are then known without reading the routing, so
  /// the host does not wait. If ranks share the tokens of a batch, an expert may keep tokens of one
  /// rank only: each rank sends it min(capacity, its tokens) rows, and the expert computes on its
  /// capacity of rows, with the padding in between removed. Evaluation drops no tokens, so there
  /// the host reads the routing.
  bool pad_to_capacity = true;
  std::int64_t alignment = 0;  ///< see LocalDispatcher
  bool recompute = false;
  Init init = Init::normal(0.02);
  Init proj_init = Init::normal(0.02);  ///< the projections back into the residual stream

  /// Throws Error that names the first violated rule.
  void validate() const;
};

/// Mixture of experts in place of an MLP: the router selects experts for each token.
///   y_t = sum over the selected e of p_te expert_e(x_t)  [+ shared(x_t)]
/// With `latent`, experts receive down(x_t), and their sum passes through up.
/// Source  Shazeer et al. 2017, arXiv:1701.06538; shared experts: Dai et al. 2024, arXiv:2401.06066
struct MoE : FeedForward {
  MoeOptions options;
  Router router;
  Experts experts;
  std::optional<Linear> latent_down, latent_up;
  std::optional<SharedExpert> shared;

  MoE(std::int64_t dim, const MoeOptions& options);
  /// x (dim), (T, dim) or (B, ..., T, dim) -> y like x. The axes before the last two enumerate the
  /// sequences that Balance::sequence counts; in a packed row each sequence is counted. Padding
  /// gets no expert. Throws Error if the packed row and x differ in length, and as the router does.
  Output operator()(const Tensor& x, const TokenContext& context = {}) const;
  void visit(Visitor& v) override;
  std::string describe() const override;
  unsigned shard_members() const override { return Shard::kDispatcher; }
  Output forward(const Tensor& x, const TokenContext& context) const override {
    return (*this)(x, context);
  }
  bool has_loss() const override { return true; }
  const char* name() const override { return "moe"; }
  /// Of the experts that a token goes to.
  double multiply_adds() const override;
  const fp8::LayerState* fp8_reader() const override;
  /// The local dispatcher, unless a plan has sharded the experts over ranks.
  const TokenDispatcher& dispatcher() const {
    return shard && shard->dispatcher ? *shard->dispatcher : local_;
  }

 private:
  LocalDispatcher local_;
  FixedRows rows_of_expert(std::int64_t tokens) const;
};

using MoeOutput = FeedForward::Output;

}  // namespace weft::nn
