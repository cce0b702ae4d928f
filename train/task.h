#pragma once
#include <functional>
#include <string>

#include "weft/distributed/device_mesh.h"
#include "weft/distributed/layout.h"
#include "weft/io/json.h"
#include "weft/nn/module.h"
#include "weft/train/loss.h"

namespace weft::train {

/// What a Trainer trains. Most tasks are a model and a loss; the other members are for models that
/// can be sharded over ranks and for programs that store more in their checkpoints.
struct Task {
  /// With --zero a forward pass waits until all parameters are gathered, unless shard_members()
  /// says that the model calls Shard::before_use.
  nn::Module& model;
  LossFunction loss;
  /// Shards the model over the ranks of a mesh, in place, and returns the layout; null: every rank
  /// holds the whole model, and the mesh may only have dp.
  std::function<distributed::Layout(const distributed::DeviceMesh&)> spread = {};
  /// How far an expert's bias moves after a step; see nn::RouterStep.
  double bias_rate = 0;
  /// Floating-point operations of a training step per target, without recomputation; 0: unknown,
  /// and metrics.jsonl has no mfu.
  double flops_per_target = 0;
  /// Peak FLOP/s of all devices together, used without --peak-tflops; 0: unknown.
  double peak_flops = 0;
  /// The name of targets in metrics.jsonl and on the progress line: "tokens", "tokens_per_s".
  std::string unit = "targets";
  /// Printed after a validation loss: "nats per token".
  std::string loss_unit = {};
  /// More members of state.json, and a check of them before a checkpoint is loaded, which throws
  /// Error if they describe another model.
  io::Json state = io::Json::object();
  std::function<void(const io::Json& state)> check_state = {};
};

}  // namespace weft::train
