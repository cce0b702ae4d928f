#pragma once
#include <memory>
#include <vector>

#include "weft/distributed/ddp.h"
#include "weft/distributed/shard_files.h"
#include "weft/optim/make.h"

namespace weft::distributed {

/// Which of a model's parameters an optimizer updates.
enum class Members : std::uint8_t { all, dense, experts };
bool includes(Members members, const BucketLayout& bucket);

/// Gradient reduction and updates for the parameters of one rank, for any layout. Every rank has
/// the same optimizers, even one that updates no parameter on this rank, and calls the same
/// functions, so that all ranks make the same collectives.
///
///   const auto adam = make_optimizer(model, mesh, layout, optim::AdamWOptions{.lr = 3e-4});
///   for (each step) {
///     for (each micro-batch) {
///       Tape tape;
///       Tensor loss = ...;
///       if (it is the last one) adam->watch(tape);
///       loss.backward(one over the global count);
///     }
///     adam->step(adam->finish(max_norm));
///     adam->zero_grad();
///   }
class ParallelOptimizer {
 public:
  virtual ~ParallelOptimizer() = default;
  ParallelOptimizer(const ParallelOptimizer&) = delete;
  ParallelOptimizer& operator=(const ParallelOptimizer&) = delete;

  /// Call it on the tape of the last micro-batch before its backward: see Ddp::watch().
  virtual void watch(Tape& tape) { ddp_->watch(tape); }
  /// Waits until every gradient is summed: see Ddp::finish().
  virtual optim::GradClip finish(double max_norm = 0) { return ddp_->finish(max_norm); }
  /// Updates the parameters. If the norm is not finite, no rank changes anything.
  virtual optim::StepResult step(const optim::GradClip& clip) = 0;
  virtual void zero_grad() { ddp_->zero_grad(); }
  /// Waits until all parameters have arrived. Call it before code reads parameters without
  /// wait(part): a checkpoint, a message, the forward of another model.
  virtual void wait() {}
  /// Waits for the parameters of one module. A model calls it right before it uses the module; pass
  /// the same object every time.
  virtual void wait(const nn::Module&) {}
  /// Whether a forward pass must call wait().
  virtual bool is_sharded() const { return false; }

  /// See optim::Optimizer. A sharded optimizer does so by DdpOptions::fp8_weights.
  virtual void store_as_masters(const std::vector<Tensor>& parameters) = 0;
  /// Gives parameters that have no memory of their own their values, until the next
  /// release_values() or step(). All ranks call both together.
  virtual void restore_values() = 0;
  virtual void release_values() = 0;

  virtual double lr() const = 0;
  virtual void set_lr(double lr) = 0;
  /// The learning rate that it was made with.
  virtual double first_lr() const = 0;
  virtual std::int64_t steps() const = 0;
  /// The norm of all parameters that this optimizer updates, over the whole job, counting each
  /// value once; of f32 master weights where there are any. One f64 on the device. One collective;
  /// the host does not wait for a GPU.
  virtual Tensor parameter_norm() const { return ddp_->joint_norm(counted_squares()); }
  /// Number of gradient values of the job that were exactly 0 at the last finish(), one f64 on the
  /// device. A parameter that had no gradient adds none. Throws Error unless the Ddp counts zeros.
  virtual Tensor zero_gradients() const { return ddp_->zeros(); }

  /// The state that this rank writes; all ranks together write everything: "step" and
  /// "<parameter>.<state>", each with its place in the whole tensor. What is read holds until the
  /// next step, and needs memory for one tensor at a time: see optim::Optimizer::state_sources().
  virtual SliceSources state_sources() const = 0;
  /// Copies of them all.
  SlicedTensors state() const;
  /// Loads this rank's part of a state saved with any layout. Load the model first. Throws Error
  /// when a state of a parameter is missing, on a state that this kind of optimizer does not have,
  /// on other shapes, and when a file cannot be read.
  virtual void load_state(const ShardFiles& files) = 0;
  /// With DdpOptions::fsdp: the parameters that this rank writes to a checkpoint, as slices that
  /// share memory with its own; else none.
  virtual SlicedTensors parameter_slices() { return {}; }
  /// With DdpOptions::fsdp: the slices that this rank updates, with their gradients; else none.
  virtual NamedTensors held_slices() const { return {}; }
  /// With DdpOptions::fsdp: reads this rank's slices of the parameters, and no more, from files of
  /// any layout; else does nothing. All ranks call it together.
  /// Throws Error as ShardFiles::read_into().
  virtual void load_parameters(const ShardFiles&) {}
  /// The sum of squares of the parameter values that only this rank counts: one f64, or null for
  /// none.
  virtual Tensor counted_squares() const = 0;
  /// Null with one rank.
  const Ddp* ddp() const { return ddp_; }

 protected:
  explicit ParallelOptimizer(Ddp* ddp) : ddp_(ddp) {}
  Ddp* ddp_;

 private:
  friend std::unique_ptr<ParallelOptimizer> make_optimizer(nn::Module& model,
                                                           const DeviceMesh& mesh,
                                                           const Layout& layout,
                                                           const optim::AnyOptions& options,
                                                           const DdpOptions& ddp);
  std::unique_ptr<Ddp> owned_ddp_;
};

/// Creates an optimizer with its own Ddp if the mesh has several ranks. With one rank nothing is
/// summed, and f32 and f64 gradients need no buckets. 16-bit parameters get an f32 main_grad in
/// both cases, because sums over tokens and micro-batches would lose small gradients in 16 bits.
/// With ddp.shard, the model's before_use or the code that runs the forward pass must call wait().
std::unique_ptr<ParallelOptimizer> make_optimizer(nn::Module& model, const DeviceMesh& mesh,
                                                  const Layout& layout,
                                                  const optim::AnyOptions& options,
                                                  const DdpOptions& ddp = {});

/// A ParallelOptimizer that updates ranges of parameters with an optim::Optimizer.
class RangeOptimizer : public ParallelOptimizer {
 public:
  double lr() const override { return inner_->lr(); }
  void set_lr(double lr) override { inner_->set_lr(lr); }
  double first_lr() const override { return first_lr_; }
  std::int64_t steps() const override { return inner_->steps(); }
  void store_as_masters(const std::vector<Tensor>& p) override { inner_->store_as_masters(p); }
  void restore_values() override { inner_->restore_values(); }
  void release_values() override { inner_->release_values(); }
  SliceSources state_sources() const override;
  void load_state(const ShardFiles& files) override;
  Tensor counted_squares() const override;
  /// Its parameters are the ranges, named after the parameters they belong to.
  const optim::Optimizer& inner() const { return *inner_; }

 protected:
  using ParallelOptimizer::ParallelOptimizer;
  /// Adds the elements of a parameter from `begin` on, stored in `values`. Exactly one of the ranks
  /// that hold a copy passes `first`.
  void add(std::size_t parameter, std::int64_t begin, const Tensor& values, bool first);
  /// Call it when all ranges are added.
  void make(const optim::AnyOptions& options);
  /// The values of the ranges, of those alone that this rank writes or of all.
  SlicedTensors values(bool all) const;
  std::unique_ptr<optim::Optimizer> inner_;

 private:
  struct Range {
    std::size_t parameter;
    std::int64_t begin, end;
    std::int64_t counted;  ///< leading elements that no other rank counts
  };
  SliceSources slices(bool all) const;
  void check_names(const ShardFiles& files, const StateDict& state) const;
  double first_lr_ = 0;
  std::vector<Range> ranges_;
  NamedTensors values_;  ///< until make()
};

/// Creates a ShardedOptimizer if the Ddp shards; otherwise every rank updates all parameters that
/// it holds. The Ddp must outlive the result.
std::unique_ptr<ParallelOptimizer> make_optimizer(Ddp& ddp, const optim::AnyOptions& options,
                                                  Members members = Members::all);

/// Several optimizers of different parameters as one, for example for dense parameters and experts.
class ChainedOptimizer : public ParallelOptimizer {
 public:
  /// Throws Error without children, and if the first one has and was made with learning rate 0
  /// where another one does not: then there is no ratio to keep.
  ChainedOptimizer(Ddp& ddp, std::vector<std::unique_ptr<ParallelOptimizer>> children);
  optim::StepResult step(const optim::GradClip& clip) override;
  void wait() override;
  void wait(const nn::Module& part) override;
  /// The learning rate of the first child.
  double lr() const override { return children_[0]->lr(); }
  /// The other children keep the ratio to the first that they had at construction or, if the first
  /// then had learning rate 0, as in a warm-up, that of the rates they were made with.
  void set_lr(double lr) override;
  double first_lr() const override { return children_[0]->first_lr(); }
  std::int64_t steps() const override { return children_[0]->steps(); }
  void store_as_masters(const std::vector<Tensor>& parameters) override;
  void restore_values() override;
  void release_values() override;
  SliceSources state_sources() const override;
  void load_state(const ShardFiles& files) override;
  SlicedTensors parameter_slices() override;
  NamedTensors held_slices() const override;
  void load_parameters(const ShardFiles& files) override;
  Tensor counted_squares() const override;

 private:
  std::vector<std::unique_ptr<ParallelOptimizer>> children_;
  std::vector<double> ratios_;
};

}  // namespace weft::distributed
