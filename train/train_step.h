#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/autograd/offload.h"
#include "weft/core/cuda.h"
#include "weft/core/cuda_graph.h"
#include "weft/data/loader.h"
#include "weft/distributed/parallel_optimizer.h"
#include "weft/nn/fp8.h"
#include "weft/nn/router_step.h"
#include "weft/train/loss_scale.h"
#include "weft/train/ranks.h"
#include "weft/train/step_result.h"
#include "weft/train/step_schedule.h"
#include "weft/train/task.h"

namespace weft::train {

/// One rank's model, optimizer and learning-rate schedule, and its training step.
///
///   train::TrainStep step(task, options, ranks);
///   for (int i = 1; i <= n; ++i) {
///     const train::StepResult r = step(i, loader.next(ranks.first_row(), ranks.rows()));
///     std::printf("%f\n", r.loss());
///   }
class TrainStep {
 public:
  /// The number of steps before graph capture. They create what is made on first use: plans of
  /// matrix products, the optimizer's lists, the check of the model's leaves.
  static constexpr std::int64_t kEagerSteps = 2;

  /// Moves the model to this rank's device, shards it over the ranks, and initializes it if it is
  /// on the meta device. All ranks make every call together. The task's model and the ranks must
  /// outlive it; do not change the model's dtype or device.
  TrainStep(const Task& task, const Options& options, const Ranks& ranks);
  ~TrainStep();
  TrainStep(const TrainStep&) = delete;

  /// Update number `step` (from 1) on this rank's rows of the global batch. If the loss or the
  /// gradient norm is not finite, weights and optimizer states stay unchanged, and after such a
  /// norm the loss scale halves; on a GPU, where the host does not wait, the optimizer still counts
  /// the step, and routers' biases move.
  StepResult operator()(std::int64_t step, const data::Batch& rows);
  /// The loss and the metrics of the task over the whole dataset, the loss first; lists are
  /// omitted. Ranks share the batches. Records nothing.
  std::vector<Value> evaluate(const data::EvalLoader& loader);
  /// This rank's first tensor with a NaN or infinity, parameters before gradients; empty if none.
  struct NonFinite {
    std::string what;
    bool is_parameter = false;
  };
  NonFinite first_non_finite() const;
  /// The same without the gradients.
  NonFinite first_non_finite_parameter() const;

  /// Bytes of activations that went out of the device's memory or came back so far.
  std::int64_t moved_bytes() const { return offload_ ? offload_->moved_bytes() : 0; }
  /// The same of optimizer states, in a step of the CPU, which uses them in their file, or so far.
  std::int64_t moved_state_bytes() const {
    if (!states_outside_) return 0;
    return device_.is_gpu() ? states_outside_->moved_bytes() : 2 * states_outside_->bytes();
  }

  /// Sets a function that is called when a phase of a micro-batch begins.
  void on_phase(const std::function<void(Phase)>& f) { schedule_->on_phase = on_phase_ = f; }

  nn::Module& model() { return task_.model; }
  /// How its parameters are distributed.
  const distributed::Layout& layout() const { return layout_; }
  distributed::ParallelOptimizer& optimizer() { return *optimizer_; }

  /// This rank's tensors for a checkpoint, which the next step changes.
  distributed::SlicedTensors model_slices();
  distributed::SliceSources optimizer_slices() const { return optimizer_->state_sources(); }
  /// Null without a loss scale.
  LossScale* loss_scale() { return loss_scale_ ? &*loss_scale_ : nullptr; }
  /// Loads weights in place of the initial ones.
  /// Throws Error on a missing or unexpected name, or a wrong shape.
  void load_weights(const distributed::ShardFiles& model);
  /// Loads trained parameters from whole tensors; those that are not given stay as they are.
  /// Throws Error on an unexpected name, or a wrong shape.
  void load_trained(const StateDict& whole);
  /// Loads this rank's shards from the files of a checkpoint, written with any layout.
  /// Throws Error on a missing or unexpected name, or a wrong shape.
  void load(const distributed::ShardFiles& model, const distributed::ShardFiles& optimizer);

 private:
  using Metrics = std::vector<Metric>;
  /// The step as a graph, and the outputs of its replays.
  struct Captured {
    explicit Captured(Device device) : graph(device) {}
    cuda::Graph graph;
    Metrics metrics;
    std::int64_t peak_bytes = 0;  ///< of the captured step: a replay allocates nothing
  };

  void place_model();
  bool makes_by_unit() const;
  std::optional<distributed::DdpOptions::Deferred> deferred();
  bool holds_slices() const;
  StateDict unsliced_state() const;
  void check_saves_trained() const;
  void keep_saved(StateDict& state, bool saved) const;
  void load_model(const distributed::ShardFiles& model, bool with_fp8_state);
  void load_only(const distributed::ShardFiles& files, bool saved);
  void load_some(StateDict given);
  /// The rows on the model's device; on a GPU always in the same memory, which a graph reads.
  data::Batch load_rows(const data::Batch& rows);
  /// Forward, backward, optimizer and routers' biases. The CPU skips the last two if a number is
  /// not finite; a GPU's optimizer then writes nothing.
  Metrics update(std::int64_t step, const data::Batch& rows);
  /// What the task counts in the rows of the step, of all ranks, on the model's device.
  Tensor totals(const data::Batch& rows) const;
  /// Sums the numbers of this rank's micro-batches over all ranks.
  void add_up(Metrics& sums) const;
  /// Adds the routers' counts of the step, summed over all ranks, and moves their biases.
  void finish_routers(Metrics& metrics);
  /// Makes the delayed scales of the next step, from the largest magnitudes on all ranks.
  void finish_fp8();
  /// Replays update() from the graph; captures it first if there is none.
  const Metrics& replay(std::int64_t step, const data::Batch& rows);

  Task task_;
  Options options_;
  const Ranks& ranks_;
  Device device_;
  const std::optional<fp8::Recipe> fp8_recipe_;
  distributed::Layout layout_;
  std::optional<Offload> offload_;               ///< of activations
  std::optional<OffloadMemory> states_outside_;  ///< outlives the optimizer
  data::Batch on_gpu_;                           ///< null on the CPU
  std::unique_ptr<distributed::ParallelOptimizer> optimizer_;
  std::optional<LossScale> loss_scale_;
  std::unique_ptr<nn::RouterStep> routers_;
  std::optional<nn::Fp8Step> fp8_;
  std::unique_ptr<StepSchedule> schedule_;
  std::function<void(Phase)> on_phase_;
  optim::Schedule lr_;
  std::int64_t eager_steps_ = 0, targets_per_row_ = 0;
  bool unfinished_ = false;  ///< gradients and counts of a step that failed are still set
  std::unique_ptr<Captured> captured_;
};

}  // namespace weft::train
