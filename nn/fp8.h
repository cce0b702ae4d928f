#pragma once
#include <string>
#include <vector>

#include "weft/autograd/fp8.h"
#include "weft/nn/module.h"

namespace weft::nn {

/// Lists the buffers of a layer's delayed scales, if it has any.
void visit_fp8(Visitor& v, const char* prefix, fp8::Delayed& delayed);

/// Makes the model ready for a recipe: every Linear and Experts that multiplies in FP8 must have
/// widths that are multiples of 16, and with delayed scales gets the buffers for them. Call it
/// before the model is moved, sharded or loaded. Norms, embeddings, routers, the head and gates
/// stay as they are.
/// Throws Error that names the first layer whose widths do not fit.
void prepare_fp8(Module& model, const fp8::Recipe& recipe);
/// The check alone, for the shards of a model that has been cut.
void check_fp8(const Module& model);

/// The layers that multiply in FP8: their weights, and what they keep between calls.
struct Fp8Layer {
  Tensor weight;  ///< (O, I), or (experts, O, I)
  fp8::LayerState* state;
};
std::vector<Fp8Layer> fp8_layers(const Module& model);
/// The weights that are multiplied in FP8, without their biases. An optimizer with f32 master
/// weights may store these alone: see optim::Optimizer::store_as_masters().
std::vector<Tensor> fp8_weights(const Module& model);

/// Whether a name in a state dictionary is that of a buffer of delayed scales, which only a model
/// that is trained with them has.
bool is_fp8_state(const std::string& name);

/// The end of each optimizer step for a model with delayed scales. Keeps handles to its buffers;
/// for a model without them it does nothing.
class Fp8Step {
 public:
  Fp8Step(Module& model, const fp8::Recipe& recipe);
  bool empty() const { return layers_.empty(); }
  /// Makes the scales of the next step. `reduce`, if given, is called exactly once, with the
  /// largest magnitudes of this step (layers, 3): all ranks then have the same scales.
  void finish(const fp8::ReduceAmax& reduce = {});

 private:
  fp8::Recipe recipe_;
  std::vector<fp8::Delayed> layers_;
};

}  // namespace weft::nn
