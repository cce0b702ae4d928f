#pragma once
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "weft/nn/router.h"

namespace weft::nn {

/// Sums counts i64 over ranks in place. Empty: one rank.
using SumCounts = std::function<void(const Tensor& counts)>;

/// What happens to the routers of a model once an optimizer step, whatever the number of
/// micro-batches and layers: one count tensor, so one reduction where there are ranks. Finds the
/// routers when it is made and follows their tensors; a model without any is fine.
class RouterStep {
 public:
  /// Throws Error when routers have different numbers of experts.
  explicit RouterStep(Module& model);
  bool empty() const { return layers_.empty(); }
  /// The kinds of balance loss that some layer has: a name for each, and its place in losses().
  std::vector<std::pair<const char*, std::int64_t>> balance_kinds() const;
  bool has_balance_loss() const { return !balance_kinds().empty(); }
  bool has_z_loss() const { return has(3); }

  /// Each kind of loss over its coefficient, the mean over micro-batches and over the layers that
  /// have it: (4), f32 or f64, in the order aux, sequence, global, z; 0 for a kind that nobody has.
  /// To be asked before finish().
  Tensor losses() const;
  /// The balance losses of each layer added up, each over its coefficient, the mean over
  /// micro-batches: (layers), f32 or f64. To be asked before finish().
  Tensor layer_losses() const;
  /// Moves the bias of every expert by rate towards the mean load, bias += rate * sign(mean count -
  /// count), and sets the counters of the step back to 0. reduce, where there is one, is called
  /// exactly once, with counts (layers, experts) i64, and sums them over all ranks in place. Layers
  /// whose weight is frozen keep their bias, as do those that counted nothing.
  ///
  /// Returns  the busiest expert's tokens over the mean, (layers) f32; 0 without tokens. Like
  ///          losses() it stays on the device: a cuda::Readback of it that is read a step later
  ///          waits for nobody.
  /// Source   Wang et al. 2024, arXiv:2408.15664, algorithm 1
  Tensor finish(double rate, const SumCounts& reduce = {});

 private:
  struct Layer {
    Tensor weight, expert_bias, tokens, global, loss_sums;
    std::array<int, 4> place;  // of each kind in loss_sums, -1 for none
    int losses;
  };
  bool has(std::size_t kind) const;
  std::vector<Layer> layers_;
  std::int64_t experts_ = 0;
};

/// RouterStep(model).finish(rate, reduce), for where a step may look for its routers.
Tensor update_expert_bias(Module& model, double rate, const SumCounts& reduce = {});

}  // namespace weft::nn
