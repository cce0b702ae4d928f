#pragma once
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/layout.h"
#include "weft/distributed/plan.h"

namespace weft::distributed {

/// Cuts the parameters of a model, inside the same tensors, down to what this rank of the tp group
/// has, and puts the communication around its layers. A model on the meta device costs nothing;
/// one with values keeps those of its part. The mesh has to outlive the model. With tp 1 nothing
/// changes.
///
///   DeviceScope on_meta(kMeta);
///   nn::Gpt model(config);
///   const Layout layout = parallelize(model, mesh, gpt_plan(config, {.sequence = true}));
///   nn::materialise(model, kCpu, seed, parts(layout));
///
/// What then happens to gradients: a rank's gradient of a cut parameter is that of its part; of a
/// whole one it is the gradient, except where tp_partial says that the ranks' have to be added.
/// Throws Error when units do not divide among the ranks, a pattern matches no layer, a rule does
/// not fit the layer that it is for, or no rule is about a parameter.
Layout parallelize(nn::Module& model, DeviceMesh& mesh, const Plan& plan);
Layout parallelize(nn::Module& model, ProcessGroup& tp, const Plan& plan);

/// What init() and materialise() want to know of a layout.
nn::Parts parts(const Layout& layout);

}  // namespace weft::distributed
