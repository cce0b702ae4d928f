#pragma once
#include <functional>
#include <vector>

#include "weft/distributed/parallel_optimizer.h"
#include "weft/train/loss.h"

namespace weft::train {

/// What a rank's own thread is at, within a step.
enum class Phase : std::uint8_t { forward, backward, update };

/// One rank's share of a step.
struct StepWork {
  const data::Batch& rows;     ///< of this rank
  std::int64_t first_row = 0;  ///< the place of the first one in the global batch
  std::int64_t step = 0;
  double cotangent = 1;  ///< what the backward of every objective starts from
};

/// How the micro-batches of one step go through the model. Another schedule (a pipeline's) is
/// another subclass; the trainer's loop does not change.
class StepSchedule {
 public:
  virtual ~StepSchedule() = default;
  /// Runs forward and backward of the whole step, which leaves the gradients of this rank's share
  /// in the parameters. Returns the sums over its micro-batches: "loss", then the metrics.
  virtual std::vector<Metric> run(const StepWork& work) = 0;
  /// Called where a phase of a micro-batch begins, if set.
  std::function<void(Phase)> on_phase;

 protected:
  void begin(Phase phase) const {
    if (on_phase) on_phase(phase);
  }
};

/// One micro-batch after the other.
class SequentialSchedule : public StepSchedule {
 public:
  struct Options {
    std::int64_t micro_batch = 0;  ///< rows of a forward pass; 0: all
    std::uint64_t seed = 0;        ///< of what is drawn at random, for each row of a step
    bool waits = false;            ///< for all parameters, before a forward pass
  };
  /// The model and the optimizer, which hears of the last micro-batch, have to outlive it.
  SequentialSchedule(nn::Module& model, LossFunction loss,
                     distributed::ParallelOptimizer& optimizer, const Options& options)
      : model_(model), loss_(std::move(loss)), optimizer_(optimizer), options_(options) {}
  std::vector<Metric> run(const StepWork& work) override;

 private:
  nn::Module& model_;
  LossFunction loss_;
  distributed::ParallelOptimizer& optimizer_;
  Options options_;
  bool leaves_checked_ = false;  ///< that visit() lists all that is trained
};

/// Adds the numbers of a micro-batch; an empty list takes their names.
/// Throws Error unless every micro-batch has the same metrics.
void add_to(std::vector<Metric>& sums, const Loss& part);

}  // namespace weft::train
