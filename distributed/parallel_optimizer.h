#pragma once
#include <memory>
#include <vector>

#include "weft/distributed/ddp.h"
#include "weft/distributed/pieces.h"
#include "weft/optim/make.h"

namespace weft::distributed {

/// Which of a model's parameters an optimizer trains.
enum class Members : std::uint8_t { all, dense, experts };
bool includes(Members members, const BucketLayout& bucket);

/// Gradients and updates of what one rank holds of a model, whatever the layout. Every rank has the
/// same optimizers, also one that holds no parameter of theirs, and calls the same functions of
/// them: so all make the same collectives.
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

  /// To be called on the tape of the last micro-batch before its backward: see Ddp::watch().
  virtual void watch(Tape& tape) { ddp_->watch(tape); }
  /// Waits until every gradient is summed: see Ddp::finish().
  virtual optim::GradClip finish(double max_norm = 0) { return ddp_->finish(max_norm); }
  /// One update. Not finite: nothing is changed, on any rank.
  virtual optim::StepResult step(const optim::GradClip& clip) = 0;
  virtual void zero_grad() { ddp_->zero_grad(); }
  /// Returns when all parameters are there. To be called before anybody reads them who does not ask
  /// by part: a checkpoint, a message, another model's forward.
  virtual void wait() {}
  /// The same for those of one part of the model, which is always the same object: what a model
  /// calls right before it uses that part.
  virtual void wait(const nn::Module&) {}
  /// Does a forward pass have to wait()?
  virtual bool is_sharded() const { return false; }

  virtual double lr() const = 0;
  virtual void set_lr(double lr) = 0;
  virtual std::int64_t steps() const = 0;
  /// The norm of all parameters that it trains, in all of the job, each value counted once; of
  /// their f32 master weights where there are such: one f64 on the device. One collective; the host
  /// does not wait for a GPU.
  virtual Tensor parameter_norm() const { return ddp_->joint_norm(counted_squares()); }
  /// How many gradient values of the job were exactly 0 at the last finish(): one f64 on the
  /// device. Throws Error unless its Ddp counts zeros.
  virtual Tensor zero_gradients() const { return ddp_->zeros(); }

  /// The state that this rank has to write, all ranks together everything: "step" and
  /// "<parameter>.<state>" with its place in the whole. Copies.
  virtual Pieces state() const = 0;
  /// Takes this rank's part out of the state of any layout. Load the model's weights first.
  /// Throws Error when a state of a parameter is missing, on a state that this kind of optimizer
  /// does not have, on other shapes, and where a file cannot be read.
  virtual void load_state(const PieceFiles& files) = 0;
  /// The sum of squares of what this rank holds of the parameters and no other one counts: one f64,
  /// null when that is nothing.
  virtual Tensor counted_squares() const = 0;
  /// Null where there is one rank.
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

/// With its own Ddp where the mesh has several ranks; where it has one, nothing is summed, and f32
/// and f64 gradients need no buckets. bf16 parameters get an f32 main_grad in either case: sums
/// over micro-batches, and over the tokens of one, would lose small gradients in bf16.
/// With ddp.shard the model's before_use, or whoever runs a forward pass, calls wait().
std::unique_ptr<ParallelOptimizer> make_optimizer(nn::Module& model, const DeviceMesh& mesh,
                                                  const Layout& layout,
                                                  const optim::AnyOptions& options,
                                                  const DdpOptions& ddp = {});

/// One that keeps an optim::Optimizer of ranges of parameters.
class RangeOptimizer : public ParallelOptimizer {
 public:
  double lr() const override { return inner_->lr(); }
  void set_lr(double lr) override { inner_->set_lr(lr); }
  std::int64_t steps() const override { return inner_->steps(); }
  Pieces state() const override;
  void load_state(const PieceFiles& files) override;
  Tensor counted_squares() const override;
  /// Its parameters are the ranges, under the names of the parameters that they are parts of.
  const optim::Optimizer& inner() const { return *inner_; }

 protected:
  using ParallelOptimizer::ParallelOptimizer;
  /// Adds the elements of a parameter from `begin` on, which lie in `values`. Of several ranks that
  /// hold the same one, one is `first`.
  void add(std::size_t parameter, std::int64_t begin, const Tensor& values, bool first);
  /// When all are added.
  void make(const optim::AnyOptions& options);
  std::unique_ptr<optim::Optimizer> inner_;

 private:
  struct Range {
    std::size_t parameter;
    std::int64_t begin, end;
    std::int64_t counted;  ///< so many of its first elements no other rank counts
  };
  Pieces pieces(bool all) const;
  void check_names(const PieceFiles& files, const StateDict& state) const;
  std::vector<Range> ranges_;
  NamedTensors values_;  ///< until make()
};

/// Shards when the Ddp, which has to outlive it, does (see ShardedOptimizer); otherwise every rank
/// updates all that it holds.
std::unique_ptr<ParallelOptimizer> make_optimizer(Ddp& ddp, const optim::AnyOptions& options,
                                                  Members members = Members::all);

/// Optimizers of different parameters as one: for the dense ones and the experts, for example.
class ChainedOptimizer : public ParallelOptimizer {
 public:
  /// Throws Error when there are none.
  ChainedOptimizer(Ddp& ddp, std::vector<std::unique_ptr<ParallelOptimizer>> children);
  optim::StepResult step(const optim::GradClip& clip) override;
  void wait() override;
  void wait(const nn::Module& part) override;
  /// The first one's.
  double lr() const override { return children_[0]->lr(); }
  /// The others keep the ratio to it that they were made with.
  void set_lr(double lr) override;
  std::int64_t steps() const override { return children_[0]->steps(); }
  Pieces state() const override;
  void load_state(const PieceFiles& files) override;
  Tensor counted_squares() const override;

 private:
  std::vector<std::unique_ptr<ParallelOptimizer>> children_;
  std::vector<double> ratios_;
};

}  // namespace weft::distributed
