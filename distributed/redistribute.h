#pragma once
#include "weft/distributed/axis_placement.h"
#include "weft/distributed/comm_cost.h"

namespace weft::distributed {

/// Hosts with eight GPUs: the rates that bench_comm_model assumes for h100-8.
inline const Cluster kUsualCluster{.inside = {.hop_us = 0.6, .bytes_per_s = 450e9},
                                   .across = {.hop_us = 2.7, .bytes_per_s = 50e9}};

/// This rank's part of a tensor under other placements, by the cheapest sequence of collectives on
/// `cluster`: see cheapest_steps(). Every rank of the mesh calls it with the same arguments besides
/// x. Equal placements communicate nothing and return x.
///
///   // rows over dp become columns over tp
///   y = redistribute(x, {1024, 512}, {&mesh.dp(), &mesh.tp()}, rows, columns);
///
/// Rank 0 of an axis holds the values of a partial sum that was replicated before, the others
/// zeros; each rank holds those of the other partials. The gradient of a replicated tensor, and of
/// a partial sum, is replicated and equal on all ranks of the axis; that of a shard is a shard.
/// Where the ranks use a replicated result for different things, each has a part of its gradient:
/// `gradient`, unless empty, then says P(sum) for those axes.
///
/// Shapes   whole: of the tensor; x, result: as shape_of(shard_spec(whole, from or to, axes))
/// Dtypes   as ProcessGroup; P(avg): f32, f64, bf16, f16
/// Device   as ProcessGroup
/// Saves    nothing
/// Throws   Error as shard_spec(), on an x of another shape, on an average of integers, and when a
///          tape records a P(max) or P(min), which has no gradient; on a `gradient` that differs
///          from that of `to` by more than P(sum) in place of R
Tensor redistribute(const Tensor& x, const Shape& whole, const MeshAxes& axes,
                    const Placements& from, const Placements& to,
                    const Cluster& cluster = kUsualCluster, const Placements& gradient = {});

}  // namespace weft::distributed
