#pragma once
#include <memory>
#include <unordered_map>
#include <vector>

#include "weft/distributed/fp8_gather.h"
#include "weft/distributed/parallel_optimizer.h"

namespace weft::distributed {

/// An optimizer sharded over the data-parallel ranks (ZeRO stage 1). Rank r of the n ranks that sum
/// a bucket's gradients owns the r-th n-th of the bucket, independent of parameter boundaries. It
/// receives the gradient sums of that slice, keeps optimizer state and master weights for it,
/// updates it, and all-gathers the updated parameters. The all-gather overlaps with the update of
/// the next bucket and with the next forward pass. Bytes per parameter value with n ranks, AdamW
/// and f32 gradients: f32 8 + 8 / n, bf16 and f16 6 + 12 / n, with remainders 6 + 10 / n.
///
/// With DdpOptions::fsdp, gradients and parameters are sharded too; see Fsdp.
///
/// The parameters equal those of the unsharded optimizer bit by bit, except with f16 states: each
/// slice has a scale of its own, so the states are rounded differently. Their files hold f32 and
/// fit any layout.
///
/// With DdpOptions::fp8_weights, FP8 codes of weights of FP8 products are gathered, and only the
/// owner has their bf16 values (Fp8Gather). restore_values() gathers these; without it the model
/// has no such values when the optimizer ends.
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
///   adam.wait();  // before other code reads the parameters
///
/// Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
/// Models", arXiv:1910.02054, stage 1.
class ShardedOptimizer : public RangeOptimizer {
 public:
  /// Throws Error when the Ddp was created without `shard`.
  ShardedOptimizer(Ddp& ddp, const optim::AnyOptions& options, Members members = Members::all);
  /// Waits for all-gathers in flight.
  ~ShardedOptimizer() override;

  /// In the remainder form, loading writes parameters (see Optimizer::load_state_dict()): each rank
  /// writes its slices and starts the all-gather, as after a step.
  void load_state(const ShardFiles& files) override;
  /// Updates this rank's slices and starts the all-gather. A skipped step gathers too, so that
  /// every rank makes the same calls.
  optim::StepResult step(const optim::GradClip& clip) override;
  void wait() override;
  /// Parameters arrive in the order of named_parameters().
  void wait(const nn::Module& part) override;
  bool is_sharded() const override { return true; }
  void store_as_masters(const std::vector<Tensor>&) override {}
  SlicedTensors parameter_slices() override;
  NamedTensors held_slices() const override {
    return fsdp() ? inner_->parameters() : NamedTensors();
  }
  void load_parameters(const ShardFiles& files) override;
  void restore_values() override;
  void release_values() override;

 private:
  Fsdp* fsdp() const { return ddp_->fsdp(); }
  void take_slices(Members members);
  void take_reached();
  std::size_t portions_of(const nn::Module& part) const;
  void wait_for(std::size_t portions);
  /// Waits, and resets the count of arrived portions.
  void forget_arrived();
  void gather(std::size_t portion);
  std::size_t bucket_of(std::size_t portion) const;

  /// The update runs in portions, one bucket each. The last bucket comes first, because the forward
  /// pass starts with it.
  std::vector<const Ddp::Bucket*> portions_;
  std::vector<std::unique_ptr<Fp8Gather>> codes_;  ///< by portion; null where bf16 is gathered
  std::vector<std::size_t> ends_;                  ///< index after each portion's last range
  std::unordered_map<const TensorImpl*, std::size_t> portion_of_;
  std::unordered_map<const nn::Module*, std::size_t>
      portions_of_;          ///< portions that a module needs
  std::vector<Work> works_;  ///< by portion
  std::size_t arrived_ = 0;
};

}  // namespace weft::distributed
