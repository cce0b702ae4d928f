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
  bool bias = false;            ///< of the experts and the shared one
  std::int64_t shared_ffn = 0;  ///< width of an MLP that every token goes through; 0: none
  bool shared_gate = false;     ///< multiply its output by sigmoid(x . w)
  std::int64_t latent = 0;      ///< the experts work on so many numbers a token; 0: on all
  /// With router.capacity_factor, while training: every expert gets exactly its capacity of rows,
  /// fillers where too few tokens want it or some are padding. Then all shapes are known without
  /// reading the routing, and the host waits for nothing. Where ranks share a batch's tokens, those
  /// that an expert keeps may all be on one of them: each sends it the whole capacity of rows, or
  /// as many as it has tokens, and what it multiplies is its capacity again, without the fillers in
  /// between. Evaluation drops nothing, so there the host reads.
  bool pad_to_capacity = true;
  std::int64_t alignment = 0;  ///< see LocalDispatcher
  bool recompute = false;
  Init init = Init::normal(0.02);
  Init proj_init = Init::normal(0.02);  ///< of the projections back into the residual stream

  /// Throws Error with the first rule that does not hold.
  void validate() const;
};

/// Mixture of experts in place of an MLP: each token goes to the experts that the router chooses.
///   y_t = sum over the chosen e of p_te expert_e(x_t)  [+ shared(x_t)]
/// With `latent`, experts see down(x_t), and their sum goes through up.
/// Source  Shazeer et al. 2017, arXiv:1701.06538; shared experts: Dai et al. 2024, arXiv:2401.06066
struct MoE : FeedForward {
  MoeOptions options;
  Router router;
  Experts experts;
  std::optional<Linear> latent_down, latent_up;
  std::optional<SharedExpert> shared;

  MoE(std::int64_t dim, const MoeOptions& options);
  /// x (dim), (T, dim) or (B, ..., T, dim) -> y alike. Each axis before the last two is one of
  /// sequences, by which Balance::sequence counts; those of a packed row are counted one by one.
  /// Its padding goes to no expert. Throws Error when the packed row has not x's tokens, and as the
  /// router does.
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
  MoE like() const;
  std::unique_ptr<FeedForward> make_like() const override { return std::make_unique<MoE>(like()); }
  /// The local one, unless a plan has put experts on other ranks.
  const TokenDispatcher& dispatcher() const {
    return shard && shard->dispatcher ? *shard->dispatcher : local_;
  }

 private:
  LocalDispatcher local_;
  FixedRows rows_of_expert(std::int64_t tokens) const;
};

using MoeOutput = FeedForward::Output;

}  // namespace weft::nn
