#pragma once
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "weft/nn/router.h"

namespace weft::nn {

/// Sums counts i64, or sums f64, over ranks in place. Empty: one rank.
using SumCounts = std::function<void(const Tensor& counts)>;

/// Losses of routers, each divided by its coefficient and averaged over the step's non-padding
/// tokens; f64, on the routers' device.
struct RouterLosses {
  /// (4): aux, sequence, global, z; each averaged over the layers that have it and trained, 0 if
  /// unused.
  Tensor kinds;
  Tensor layers;  ///< (layers): the sum of a layer's balance losses
};

/// The work on a model's routers once per optimizer step, for any number of micro-batches and
/// layers. All counts are in one tensor, so ranks need one all-reduce. The constructor finds the
/// routers and keeps handles to their tensors; a model may have none.
class RouterStep {
 public:
  /// Throws Error if routers have different numbers of experts.
  explicit RouterStep(Module& model);
  bool empty() const { return layers_.empty(); }
  /// The kinds of balance loss that at least one layer has: name, and index in losses().
  std::vector<std::pair<const char*, std::int64_t>> balance_kinds() const;
  bool has_balance_loss() const { return !balance_kinds().empty(); }
  bool has_z_loss() const { return has(3); }

  /// The losses of the step so far. `reduce`, if given, is called exactly once, with sums f64, and
  /// sums them over all ranks in place. Call before finish().
  RouterLosses losses(const SumCounts& reduce = {}) const;
  /// Moves the bias of every expert by `rate` towards the mean load, bias += rate * sign(mean count
  /// - count), and resets the counters of the step. `reduce`, if given, is called exactly once,
  /// with counts (layers, experts) i64, and sums them over all ranks in place. Layers whose weight
  /// is frozen or that counted no tokens keep their bias.
  ///
  /// Returns  the busiest expert's tokens over the mean, (layers) f32; 0 without tokens. It stays
  ///          on the device, like losses(): a cuda::Readback that is read a step later does not
  ///          wait.
  /// Source   Wang et al. 2024, arXiv:2408.15664, algorithm 1
  Tensor finish(double rate, const SumCounts& reduce = {});

 private:
  struct Layer {
    Tensor weight, expert_bias, tokens, global, loss_sums;
    std::array<int, 4> place;  // index of each kind in loss_sums, -1 for none
    int losses;
  };
  bool has(std::size_t kind) const;
  std::vector<Layer> layers_;
  std::int64_t experts_ = 0;
};

/// RouterStep(model).finish(rate, reduce), for callers that may search for the routers each step.
Tensor update_expert_bias(Module& model, double rate, const SumCounts& reduce = {});

}  // namespace weft::nn
