#pragma once
#include <functional>
#include <string>

#include "weft/distributed/device_mesh.h"
#include "weft/distributed/layout.h"
#include "weft/io/json.h"
#include "weft/nn/module.h"
#include "weft/train/loss.h"

namespace weft::train {

/// The loss_unit of a language model, for which a validation loss is also shown as a perplexity.
inline constexpr const char* kNatsPerToken = "nats per token";

/// What is trained. Most tasks are a model and a loss; the rest is for models that can be cut over
/// ranks, and for what a program writes into its checkpoints.
struct Task {
  /// With --zero a forward pass begins when all parameters are there, unless the model says by
  /// shard_members() that it calls Shard::before_use.
  nn::Module& model;
  LossFunction loss;
  /// Cuts the model over the ranks of a mesh, in place, and says how; null: every rank has all of
  /// it, and a mesh may have dp only.
  std::function<distributed::Layout(const distributed::DeviceMesh&)> spread = {};
  /// How far the bias of an expert moves after a step; see nn::RouterStep.
  double bias_rate = 0;
  /// Floating point operations of a training step for one target, without what is computed again;
  /// 0: not known, and metrics.jsonl has no mfu.
  double flops_per_target = 0;
  /// What the devices of the run reach together, in FLOP/s, where --peak-tflops does not say it; 0:
  /// not known.
  double peak_flops = 0;
  /// What targets are called in metrics.jsonl and on the progress line: "tokens", "tokens_per_s".
  std::string unit = "targets";
  /// Behind a validation loss: "nats per token".
  std::string loss_unit = {};
  /// Bytes of text that a token of the data stands for on average; 0: not known.
  double bytes_per_token = 0;
  /// What --sample-every shows: text that the model writes as it is. Called between two steps on
  /// the first rank alone, so it may not wait for others.
  std::function<std::string()> sample = {};
  /// More members of state.json; and what looks at them before a checkpoint is loaded, and throws
  /// Error when they are those of another model.
  io::Json state = io::Json::object();
  std::function<void(const io::Json& state)> check_state = {};
};

}  // namespace weft::train
