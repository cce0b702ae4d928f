#pragma once
#include <memory>
#include <vector>

#include "weft/distributed/world.h"
#include "weft/train/options.h"
#include "weft/train/task.h"
#include "weft/train/train_step.h"

namespace weft::train {

/// The meta device on which a run with these options is planned: kMeta counts the bytes of the CPU,
/// meta_cuda those of a GPU.
Device planned_device(const Options& options);
/// The devices whose bytes count: on the CPU also those of the tables on the host that a step needs
/// on any device.
std::vector<Device> planned_devices(const Options& options);

/// A real training step of one rank on the meta device; the other ranks are simulated.
class PlannedStep {
 public:
  /// The task's model is on the meta device. `rows` holds any number of training rows: their
  /// values do not matter, but those of positions. 0 ranks: a single-rank run.
  PlannedStep(const Task& task, const Options& options, const data::Batch& rows, int ranks,
              int rank);

  /// Runs update number `step`. The first one differs from all others: it creates states. Of many
  /// micro-batches, which are alike, it runs a few.
  StepResult operator()(std::int64_t step);
  /// The number of micro-batches of a step, and of those that it runs.
  std::int64_t micro_batches() const { return micro_batches_; }
  std::int64_t run_micro_batches() const { return run_; }
  /// What the rows of the others need in addition.
  std::int64_t bytes_left_out() const { return bytes_left_out_; }
  TrainStep& step() { return *step_; }
  const Ranks& ranks() const { return *ranks_; }

 private:
  data::Batch share(std::int64_t rows) const;

  data::Batch rows_;
  Options options_;
  std::unique_ptr<distributed::World> world_;
  std::unique_ptr<Ranks> ranks_;
  std::unique_ptr<TrainStep> step_;
  std::int64_t micro_batches_ = 0, run_ = 0, bytes_left_out_ = 0;
};

}  // namespace weft::train
