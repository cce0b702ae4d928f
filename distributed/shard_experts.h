#pragma once
#include "weft/core/fields.h"
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/layout.h"
#include "weft/nn/module.h"
#include "weft/nn/token_dispatcher.h"

namespace weft::distributed {

/// How tokens reach experts on other ranks.
enum class Dispatcher : std::uint8_t { all_to_all, all_gather };
inline constexpr Word<Dispatcher> kDispatcherWords[] = {{"all-to-all", Dispatcher::all_to_all},
                                                        {"all-gather", Dispatcher::all_gather}};

struct ExpertPlan {
  Dispatcher dispatcher = Dispatcher::all_to_all;
  nn::TokenForm tokens = nn::TokenForm::model;  ///< on one rank too, which then rounds alike
  bool overlap_shared = true;      ///< run the shared expert while tokens are in flight
  bool delay_gradients = false;    ///< weight gradients while those of tokens are in flight
  bool sequence_parallel = false;  ///< tokens are split over the tp ranks
};

/// Shards the experts of every nn::MoE in the model over the ranks of a mesh, in place. Rank p of
/// ep keeps the experts p E/ep ... (p+1) E/ep; their hidden units are split over etp. The router's
/// counts are summed over the ranks that share a batch. Returns the layout of the expert parameters
/// and of the replicated parameters that see only this rank's tokens.
///
/// Gradients of experts cover the tokens of all ranks of tp_ep and must be summed over edp;
/// gradients of routers are reduced like those of any dense parameter.
/// Call it after parallelize(), whose layout entries these replace, and before creating the
/// optimizer. On the meta device, materialise() fills in the values. The mesh must outlive the
/// model.
/// Throws Error when experts or hidden units do not divide, when Sinkhorn routing meets a batch
/// that is split over ranks, and for tp > 1 without sequence parallelism, where all tp ranks would
/// send the same tokens.
Layout shard_experts(nn::Module& model, const DeviceMesh& mesh, const ExpertPlan& plan = {});

/// The function that RouterStep::finish() applies to the counts of a step: sums them over all
/// ranks. Null on a mesh where there is nothing to sum. The mesh must outlive it.
std::function<void(const Tensor&)> sum_router_counts(const DeviceMesh& mesh);

}  // namespace weft::distributed
