#pragma once
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/layout.h"
#include "weft/distributed/plan.h"

namespace weft::distributed {

/// Shards the parameters of a model, in place, for this rank of the tp group, and adds the
/// communication around its layers. A meta model costs nothing; a model with values keeps those of
/// its shard. The mesh must outlive the model. With tp 1 nothing changes.
///
///   DeviceScope on_meta(kMeta);
///   nn::Gpt model(config);
///   const Layout layout = parallelize(model, mesh, gpt_plan(config, {.sequence = true}));
///   nn::materialise(model, kCpu, seed, shard_specs(layout));
///
/// The gradient of a sharded parameter is that of its shard. The gradient of a replicated parameter
/// is complete, except where tp_partial says that it must be summed over the ranks.
/// Throws Error when units do not divide among the ranks, a pattern matches no layer, a rule does
/// not fit its layer, or no rule covers a parameter.
Layout parallelize(nn::Module& model, DeviceMesh& mesh, const Plan& plan);
/// The same for a group of the caller's choice. For one of Degrees::axes the layout has cut_over in
/// place of tp_cut. Throws Error if gradients or key heads would then have to be summed over it.
Layout parallelize(nn::Module& model, ProcessGroup& tp, const Plan& plan);

/// The shards of a layout, as init() and materialise() take them.
nn::ShardSpecs shard_specs(const Layout& layout);

}  // namespace weft::distributed
