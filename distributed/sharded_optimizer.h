#pragma once
#include <memory>
#include <string>
#include <vector>

#include "weft/distributed/ddp.h"
#include "weft/distributed/pieces.h"
#include "weft/optim/adamw.h"
#include "weft/optim/sgd.h"

namespace weft::distributed {

/// An optimizer of which each rank does its share: rank r of the n that sum a bucket's gradients
/// owns the r-th n-th of the bucket, whatever parameters begin or end there. It receives the sums
/// of that slice only, keeps states and f32 copies of that slice only, updates it, and gathers what
/// the others have updated, a bucket while the next is updated. Bytes for each parameter value, n
/// ranks, AdamW with f32 gradients: f32 8 + 8 / n, bf16 6 + 12 / n.
///
/// The parameters come out as those of the same optimizer on every rank, bit by bit, except with
/// f16 states, whose scales are those of a slice.
///
///   Ddp ddp(model, mesh, layout, {.shard = true});
///   ShardedOptimizer adam(ddp, optim::AdamWOptions{.lr = 3e-4});
///   for (each step) {
///     adam.wait();  // before the model is used
///     ...           // backward as with any Ddp
///     adam.step(ddp.finish(max_norm));
///   }
///
/// Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
/// Models", arXiv:1910.02054, stage 1.
class ShardedOptimizer {
 public:
  /// The Ddp has to outlive it. Throws Error when that was made without `shard`.
  ShardedOptimizer(Ddp& ddp, const optim::AdamWOptions& options);
  ShardedOptimizer(Ddp& ddp, const optim::SgdOptions& options);
  /// Waits for parameters that are on their way.
  ~ShardedOptimizer();
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  /// Updates this rank's slices and starts to gather those of the others. Gathers after a skipped
  /// step too, so that every rank does.
  optim::StepResult step(const optim::GradClip& clip);
  /// Returns when the parameters of all ranks are there. To be called before anybody reads them:
  /// forward, evaluation, checkpoint.
  void wait();

  double lr() const { return slices_->lr(); }
  void set_lr(double lr) { slices_->set_lr(lr); }
  std::int64_t steps() const { return slices_->steps(); }
  /// The optimizer of the slices: its parameters are flat and have the names of those that they are
  /// parts of.
  const optim::Optimizer& slices() const { return *slices_; }
  /// The norm of all parameters of the job, of their f32 copies where there are such. One
  /// collective.
  double parameter_norm() const;

  /// This rank's part of the state: "step", and "<parameter>.<state>" with its place in the whole.
  /// Handles of copies.
  Pieces state() const;
  /// Takes this rank's part out of the state of any layout. Load the model's weights first.
  void load_state(const PieceFiles& files);

 private:
  template <class Optimizer, class Options>
  void make(const Options& options);
  Piece piece_of(std::size_t range) const;

  Ddp& ddp_;
  std::unique_ptr<optim::Optimizer> slices_;
  std::vector<OwnedRange> ranges_;     ///< by parameter of slices_
  std::vector<std::int64_t> counted_;  ///< values that no other rank counts
  std::vector<std::size_t> ends_;      ///< of each bucket's ranges
  std::vector<Work> works_;
};

}  // namespace weft::distributed
