#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/core/cuda_graph.h"
#include "weft/data/loader.h"
#include "weft/distributed/ddp.h"
#include "weft/distributed/pieces.h"
#include "weft/distributed/sharded_optimizer.h"
#include "weft/examples/common/options.h"
#include "weft/examples/common/ranks.h"
#include "weft/nn/gpt.h"
#include "weft/nn/router_step.h"
#include "weft/optim/optimizer.h"
#include "weft/optim/schedule.h"

namespace weft::train {

/// Gives rows [first, first + rows) of the global batch of the step in hand.
using BatchSource = std::function<data::Batch(std::int64_t first, std::int64_t rows)>;

/// Gives evaluation batch i.
using EvalSource = std::function<data::Batch(std::int64_t i)>;

/// What one optimizer step produced. The numbers are absent on the meta device. From a GPU they are
/// on their way: reading them waits.
struct StepResult {
  std::optional<cuda::Readback> loss_sum;   ///< nats, over all predicted tokens of the global batch
  std::optional<cuda::Readback> grad_norm;  ///< before clipping
  std::int64_t targets = 0;                 ///< how many these are
  /// Of each depth of multi-token prediction, over its targets in the global batch.
  struct Depth {
    cuda::Readback loss;        ///< mean, nats
    cuda::Readback acceptance;  ///< share of the targets that have the largest logit
  };
  std::vector<Depth> mtp;
  std::optional<cuda::Readback> balance_loss;  ///< over its coefficient: 1 for an even load
  std::optional<cuda::Readback> z_loss;        ///< over its coefficient
  /// The busiest expert's tokens over the mean, for each layer with experts.
  std::vector<cuda::Readback> load;
  double lr = 0;
  std::int64_t live_bytes = 0, peak_bytes = 0;

  double loss() const { return loss_sum->value() / static_cast<double>(targets); }
};

/// Sums over the micro-batches of a step, one element each; of MTP one for each depth.
struct StepSums {
  Tensor loss;
  TensorList mtp, mtp_count, mtp_hits;

  void add(const nn::GptLosses& part);
};

/// What a rank's own thread is at, within a step.
enum class Phase : std::uint8_t { forward, backward, update };

/// How the micro-batches of one step go through the model. Another schedule (a pipeline's) is
/// another subclass; the trainer's loop does not change.
class StepSchedule {
 public:
  virtual ~StepSchedule() = default;
  /// Runs forward and backward of the whole step, leaving the gradient of the mean loss over
  /// `count` targets, and that of the MTP depths with their weight, in the parameters.
  virtual StepSums run(nn::Gpt& model, std::int64_t step, std::int64_t count,
                       const BatchSource& batches) = 0;
  /// Called where a phase of a micro-batch begins, if set.
  std::function<void(Phase)> on_phase;

 protected:
  void begin(Phase phase) const {
    if (on_phase) on_phase(phase);
  }
};

/// One micro-batch after the other on one device.
class SequentialSchedule : public StepSchedule {
 public:
  /// Of rows [first, first + rows) of the global batch. `ddp`, or null, is told of the last one.
  SequentialSchedule(std::int64_t first, std::int64_t rows, std::int64_t micro_batch,
                     std::uint64_t seed, distributed::Ddp* ddp = nullptr)
      : first_(first), rows_(rows), micro_batch_(micro_batch), seed_(seed), ddp_(ddp) {}
  StepSums run(nn::Gpt& model, std::int64_t step, std::int64_t count,
               const BatchSource& batches) override;

 private:
  std::int64_t first_, rows_, micro_batch_;
  std::uint64_t seed_;
  distributed::Ddp* ddp_;
  bool leaves_checked_ = false;  ///< that visit() lists all that is trained
};

/// Model, optimizer and learning-rate schedule of a run on one device, or of one rank of it.
class Session {
 public:
  /// `ranks`, which outlives it, is null for a run alone. Otherwise all of them make every call
  /// together, and what step() and evaluate() give is that of the whole job on each of them.
  Session(const Options& options, Device device, const Ranks* ranks = nullptr);

  /// Update number `step` (from 1) on the global batch that `batches` serves. A loss or gradient
  /// norm that is not finite leaves weights and states as they were; on a GPU, which nobody waits
  /// for, the optimizer still counts the step, and routers' biases move.
  StepResult step(std::int64_t step, const BatchSource& batches);
  /// Mean loss over the targets of so many batches; with several ranks each takes some of them.
  /// Nothing is recorded.
  double evaluate(std::int64_t batches, const EvalSource& batch_at);
  /// The first tensor of this rank with a NaN or an infinity, parameters before gradients; empty
  /// without any.
  struct NonFinite {
    std::string what;
    bool is_parameter = false;
  };
  NonFinite first_non_finite() const;

  /// For whoever wants to know what happens when: f is called where a phase begins.
  void on_phase(const std::function<void(Phase)>& f) { schedule_->on_phase = on_phase_ = f; }

  nn::Gpt& model() { return *model_; }
  /// Null for a run alone.
  const distributed::Ddp* ddp() const { return ddp_.get(); }
  /// Of a run without ranks that share its state.
  optim::Optimizer& optimizer() { return *optimizer_; }

  /// Waits for parameters that other ranks have updated. Before anybody else reads them.
  void wait_for_parameters() {
    if (sharded_) sharded_->wait();
  }
  /// What this rank adds to a checkpoint. Of ranks that hold the same, one writes it.
  distributed::Pieces model_pieces();
  distributed::Pieces optimizer_pieces() const;
  /// Starts from these weights instead of its own.
  /// Throws Error on a missing or unexpected name, or another shape.
  void load_weights(const distributed::PieceFiles& model);
  /// Takes what it needs from the files of a checkpoint, in whatever layout they were written.
  /// Throws Error on a missing or unexpected name, or another shape.
  void load(const distributed::PieceFiles& model, const distributed::PieceFiles& optimizer);

 private:
  /// What a step leaves behind, on the device.
  struct Numbers {
    StepSums sums;
    Tensor grad_norm;
    Tensor router_losses, load;  ///< as RouterStep gives them
  };
  /// The step as a graph, and what its replays write.
  struct Captured {
    explicit Captured(Device device) : graph(device) {}
    cuda::Graph graph;
    Numbers numbers;
    std::int64_t peak_bytes = 0;  ///< of the step that was captured: a replay allocates nothing
  };

  /// Copies the global batch to where a GPU's steps read it.
  void load_batch(const BatchSource& batches);
  /// Forward, backward, the optimizer and the routers' biases; these two on the CPU only on finite
  /// numbers. A GPU's optimizer writes nothing when one of them is not finite.
  Numbers update(std::int64_t step, const BatchSource& batches);
  /// What routers have counted in the step, over all ranks, and their biases.
  void finish_routers(Numbers& n);
  /// The same from the graph, which is captured first if there is none.
  void replay(std::int64_t step, const BatchSource& batches);
  void start_reading(const Numbers& n, StepResult& result) const;
  void spread_over_ranks();
  /// Makes sums of this rank's micro-batches those of the whole batch.
  void add_up(StepSums& sums) const;

  Options options_;
  Device device_;
  const Ranks* ranks_;
  distributed::Layout layout_;
  data::Batch on_gpu_;  ///< the whole global batch, always in the same place; null on the CPU
  std::unique_ptr<nn::Gpt> model_;
  std::unique_ptr<distributed::Ddp> ddp_;  ///< null for a run alone
  // One of these two.
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<distributed::ShardedOptimizer> sharded_;
  std::unique_ptr<nn::RouterStep> routers_;
  std::unique_ptr<StepSchedule> schedule_;
  std::function<void(Phase)> on_phase_;
  optim::Schedule lr_;
  std::int64_t eager_steps_ = 0;
  std::unique_ptr<Captured> captured_;
};

/// A real step on the meta device, twice (the second one has the optimizer's state): the bytes that
/// rank `rank` of so many with these options will have live at most on its device. 0 ranks: a
/// process that is alone, and has no buffers to send gradients from.
std::int64_t predict_peak_bytes(const Options& options, int ranks, int rank);

}  // namespace weft::train
