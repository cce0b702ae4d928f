#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/core/cuda_graph.h"
#include "weft/data/loader.h"
#include "weft/distributed/parallel_optimizer.h"
#include "weft/nn/router_step.h"
#include "weft/train/ranks.h"
#include "weft/train/step_result.h"
#include "weft/train/step_schedule.h"
#include "weft/train/task.h"

namespace weft::train {

/// One rank's model, optimizer and learning-rate schedule, and the step that moves them.
///
///   train::TrainStep step(task, options, ranks);
///   for (int i = 1; i <= n; ++i) {
///     const train::StepResult r = step(i, loader.next(ranks.first_row(), ranks.rows()));
///     std::printf("%f\n", r.loss());
///   }
class TrainStep {
 public:
  /// Steps before one is captured as a graph: what is made at first use (plans of products, the
  /// optimizer's lists, the check of the model's leaves) is made in these.
  static constexpr std::int64_t kEagerSteps = 2;

  /// Moves the model to this rank's device, spreads it over the ranks, and gives it values when it
  /// is on the meta device. All ranks make every call together. The task's model and the ranks have
  /// to outlive it, and the model keeps its dtype and device.
  TrainStep(const Task& task, const Options& options, const Ranks& ranks);
  ~TrainStep();
  TrainStep(const TrainStep&) = delete;

  /// Update number `step` (from 1) on this rank's rows of the global batch. A loss or gradient norm
  /// that is not finite leaves weights and states as they were; on a GPU, where the host does not
  /// wait, the optimizer still counts the step, and routers' biases move.
  StepResult operator()(std::int64_t step, const data::Batch& rows);
  /// The numbers of the task's loss over the whole dataset, the loss first; with several ranks each
  /// takes some of the batches. Lists are left out. Nothing is recorded.
  std::vector<Value> evaluate(const data::EvalLoader& loader);
  /// The first tensor of this rank with a NaN or an infinity, parameters before gradients; empty
  /// without any.
  struct NonFinite {
    std::string what;
    bool is_parameter = false;
  };
  NonFinite first_non_finite() const;

  /// Called where a phase of a micro-batch begins.
  void on_phase(const std::function<void(Phase)>& f) { schedule_->on_phase = on_phase_ = f; }

  nn::Module& model() { return task_.model; }
  distributed::ParallelOptimizer& optimizer() { return *optimizer_; }

  /// What this rank adds to a checkpoint.
  distributed::Pieces model_pieces();
  distributed::Pieces optimizer_pieces() const { return optimizer_->state(); }
  /// Starts from these weights instead of its own.
  /// Throws Error on a missing or unexpected name, or another shape.
  void load_weights(const distributed::PieceFiles& model);
  /// Takes what it needs from the files of a checkpoint, in whatever layout they were written.
  /// Throws Error on a missing or unexpected name, or another shape.
  void load(const distributed::PieceFiles& model, const distributed::PieceFiles& optimizer);

 private:
  using Metrics = std::vector<Metric>;
  /// The step as a graph, and what its replays write.
  struct Captured {
    explicit Captured(Device device) : graph(device) {}
    cuda::Graph graph;
    Metrics metrics;
    std::int64_t peak_bytes = 0;  ///< of the step that was captured: a replay allocates nothing
  };

  void place_model();
  /// The rows on the model's device; on a GPU always in the same place, where a graph finds them.
  data::Batch load_rows(const data::Batch& rows);
  /// Forward, backward, the optimizer and the routers' biases; these two on the CPU only on finite
  /// numbers. A GPU's optimizer writes nothing when one of them is not finite.
  Metrics update(std::int64_t step, const data::Batch& rows);
  /// Makes sums of this rank's micro-batches those of the whole batch.
  void add_up(Metrics& sums) const;
  /// Adds what routers have counted in the step, over all ranks, and moves their biases.
  void finish_routers(Metrics& metrics);
  /// update() from the graph, which is captured first if there is none.
  const Metrics& replay(std::int64_t step, const data::Batch& rows);

  Task task_;
  Options options_;
  const Ranks& ranks_;
  Device device_;
  distributed::Layout layout_;
  data::Batch on_gpu_;  ///< null on the CPU
  std::unique_ptr<distributed::ParallelOptimizer> optimizer_;
  std::unique_ptr<nn::RouterStep> routers_;
  std::unique_ptr<StepSchedule> schedule_;
  std::function<void(Phase)> on_phase_;
  optim::Schedule lr_;
  std::int64_t eager_steps_ = 0, targets_per_row_ = 0;
  bool unfinished_ = false;  ///< gradients and counts of a step that ended early are still there
  std::unique_ptr<Captured> captured_;
};

}  // namespace weft::train
