#pragma once
#include "weft/core/fields.h"
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/layout.h"
#include "weft/nn/module.h"

namespace weft::distributed {

/// How tokens get to experts on other ranks.
enum class Dispatcher : std::uint8_t { all_to_all, all_gather };
inline constexpr Word<Dispatcher> kDispatcherWords[] = {{"all-to-all", Dispatcher::all_to_all},
                                                        {"all-gather", Dispatcher::all_gather}};

struct ExpertPlan {
  Dispatcher dispatcher = Dispatcher::all_to_all;
  bool overlap_shared = true;      ///< the shared expert runs while tokens are on their way
  bool sequence_parallel = false;  ///< each tp rank has its own part of the tokens
};

/// Spreads the experts of every nn::MoE in the model over the ranks of a mesh, in place. Rank p of
/// ep keeps the experts p E/ep ... (p+1) E/ep; their hidden units are split among the ranks of etp.
/// The router's counts are summed over the ranks that share a batch. Returns the layout of the
/// parameters of experts, and of those that stay whole but see this rank's tokens only.
///
/// Gradients: those of experts come from the tokens of all ranks of tp_ep and are to be summed over
/// edp; those of routers as of any other parameter.
/// Call it before the optimizer is made and after parallelize(), of whose layout these entries take
/// the place. On the meta device, materialise() fills in the values. The mesh has to outlive the
/// model.
/// Throws Error when experts or hidden units do not divide, and for tp > 1 without sequence
/// parallelism, where all tp ranks would send the same tokens.
Layout shard_experts(nn::Module& model, const DeviceMesh& mesh, const ExpertPlan& plan = {});

/// What RouterStep::finish() has to do with the counts of a step: sum them over all ranks. Null on
/// a mesh where nothing is to be summed. The mesh has to outlive it.
std::function<void(const Tensor&)> sum_router_counts(const DeviceMesh& mesh);

}  // namespace weft::distributed
