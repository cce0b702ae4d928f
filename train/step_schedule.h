#pragma once
#include <functional>
#include <vector>

#include "weft/distributed/parallel_optimizer.h"
#include "weft/train/loss.h"

namespace weft::train {

/// The phase of a step that a rank's thread is in.
enum class Phase : std::uint8_t { forward, backward, update };
constexpr const char* name_of(Phase phase) {
  return phase == Phase::forward ? "forward" : phase == Phase::backward ? "backward" : "update";
}

/// One rank's share of a step.
struct StepWork {
  const data::Batch& rows;     ///< the rows of this rank
  std::int64_t first_row = 0;  ///< index of the first row in the global batch
  std::int64_t step = 0;
  double cotangent = 1;  ///< upstream gradient of every objective
  Tensor loss_scale;     ///< one f64 that multiplies it; null: 1
};

/// How the micro-batches of a step run through the model. Another schedule (a pipeline's) is
/// another subclass; the trainer's loop stays the same.
class StepSchedule {
 public:
  virtual ~StepSchedule() = default;
  /// Runs forward and backward of the whole step, leaving the gradients of this rank's share in the
  /// parameters. Returns the sums over its micro-batches: "loss", then the metrics.
  virtual std::vector<Metric> run(const StepWork& work) = 0;
  /// Called, if set, when a phase of a micro-batch begins.
  std::function<void(Phase)> on_phase;

 protected:
  void begin(Phase phase) const {
    if (on_phase) on_phase(phase);
  }
};

/// Runs one micro-batch after the other.
class SequentialSchedule : public StepSchedule {
 public:
  struct Options {
    std::int64_t micro_batch = 0;  ///< rows of a forward pass; 0: all
    std::uint64_t seed = 0;        ///< seed of the random numbers of each row and step
    bool waits = false;            ///< wait for all parameters before a forward pass
    bool reports = true;           ///< log the parameters that the first forward pass does not use
  };
  /// The model and the optimizer, which watches the last micro-batch's tape, must outlive it.
  SequentialSchedule(nn::Module& model, LossFunction loss,
                     distributed::ParallelOptimizer& optimizer, const Options& options)
      : model_(model), loss_(std::move(loss)), optimizer_(optimizer), options_(options) {}
  /// Throws Error in the first forward pass if it uses a tensor that requires a gradient and that
  /// the model's visit() does not list.
  std::vector<Metric> run(const StepWork& work) override;

 private:
  void check_leaves(const Tape& tape);
  nn::Module& model_;
  LossFunction loss_;
  distributed::ParallelOptimizer& optimizer_;
  Options options_;
  bool leaves_checked_ = false;  ///< visit() was found to list every trained tensor
};

/// Adds the numbers of a micro-batch; if `sums` is empty, it takes their names.
/// Throws Error unless every micro-batch has the same metrics.
void add_to(std::vector<Metric>& sums, const Loss& part);

}  // namespace weft::train
