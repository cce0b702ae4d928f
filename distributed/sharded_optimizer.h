#pragma once
#include <unordered_map>
#include <vector>

#include "weft/distributed/parallel_optimizer.h"

namespace weft::distributed {

/// An optimizer of which each rank does its share: rank r of the n that sum a bucket's gradients
/// owns the r-th n-th of the bucket, whatever parameters begin or end there. It receives the sums
/// of that slice only, keeps states and master weights of that slice only, updates it, and gathers
/// what the others have updated: while the next bucket is updated, and while the next forward pass
/// comes to it. Bytes for each parameter value, n ranks, AdamW with f32 gradients: f32 8 + 8 / n,
/// bf16 6 + 12 / n, with remainders 6 + 10 / n.
///
/// The parameters come out as those of the same optimizer on every rank, bit by bit, except with
/// f16 states, whose scales are those of a slice.
///
///   Ddp ddp(model, mesh, layout, {.shard = true});
///   ShardedOptimizer adam(ddp, optim::AdamWOptions{.lr = 3e-4});
///   nn::change_shard(model, [&](nn::Shard& s) {
///     s.before_use = [&](const nn::Module& part) { adam.wait(part); };
///   });
///   for (each step) {
///     ...  // forward and backward as with any Ddp
///     adam.step(ddp.finish(max_norm));
///   }
///   adam.wait();  // before anybody else reads the parameters
///
/// Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
/// Models", arXiv:1910.02054, stage 1.
class ShardedOptimizer : public RangeOptimizer {
 public:
  /// Throws Error when the Ddp was made without `shard`.
  ShardedOptimizer(Ddp& ddp, const optim::AnyOptions& options, Members members = Members::all);
  /// Waits for parameters that are on their way.
  ~ShardedOptimizer() override;

  /// In the remainder form loading writes weights (see Optimizer::load_state_dict()): each rank its
  /// slices, and starts to gather those of the others as after a step.
  void load_state(const PieceFiles& files) override;
  /// Updates this rank's slices and starts to gather those of the others; after a skipped step too,
  /// so that every rank does.
  optim::StepResult step(const optim::GradClip& clip) override;
  void wait() override;
  /// Parameters arrive in the order of named_parameters().
  void wait(const nn::Module& part) override;
  bool is_sharded() const override { return true; }

 private:
  void take_slices(Members members);
  void take_reached();
  std::size_t portions_of(const nn::Module& part) const;
  void wait_for(std::size_t portions);
  /// Waits, and begins to count anew.
  void forget_arrived();
  void gather(std::size_t portion);

  /// A bucket is a portion of the update. The last bucket comes first: forward begins with it.
  std::vector<const Ddp::Bucket*> portions_;
  std::vector<std::size_t> ends_;  ///< of each portion's ranges
  std::unordered_map<const TensorImpl*, std::size_t> portion_of_;
  std::unordered_map<const nn::Module*, std::size_t> portions_of_;  ///< that a part needs
  std::vector<Work> works_;                                         ///< by portion
  std::size_t arrived_ = 0;
};

}  // namespace weft::distributed
