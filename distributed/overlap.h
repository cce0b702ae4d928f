#pragma once
#include "weft/core/fields.h"
#include "weft/distributed/process_group.h"

namespace weft::distributed {

/// How a product and the communication of its rows share the time.
enum class Overlap : std::uint8_t {
  none,      ///< one after the other
  ring,      ///< rows of one rank at a time: the next ones travel while these are multiplied
  pipeline,  ///< sums: some columns at a time, scattered while the next ones are multiplied
};
inline constexpr Word<Overlap> kOverlapWords[] = {
    {"none", Overlap::none}, {"ring", Overlap::ring}, {"pipeline", Overlap::pipeline}};

/// linear(gather_rows(x), weight, bias), where the rows of other ranks arrive in a ring while
/// those that are here are multiplied. Backward gathers x a second time during the product for its
/// gradient, and scatters that gradient during the product for the weight's: x alone is kept.
///
/// Shapes   x (..., n, C) with R rows, as many on every rank, weight (N, C), bias (N) or null
///          -> (1, ..., R ranks, N)
/// Dtypes   f32, f64, bf16, all alike
/// Device   as ProcessGroup
/// Saves    x, weight
/// Throws   Error on an x with fewer than 2 axes, a weight or bias of another shape, mixed dtypes;
///          once differentiable
/// Source   Wang et al. 2023, "Overlap Communication with Dependent Computation via Decomposition",
///          doi:10.1145/3567955.3567959
Tensor gather_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     ProcessGroup& group);

/// reduce_scatter_rows(linear(x, weight)), where the rows (ring) or columns (pipeline) that are
/// done travel while the next ones are multiplied. Values are added in the order of ranks. Backward
/// gathers dy in a ring during the product for dx. On a GPU both forms are pipelines.
///
/// Shapes   x (..., n, K) with R rows, a multiple of the ranks, weight (N, K)
///          -> (1, ..., R / ranks, N)
/// Dtypes   f32, f64, bf16 (added in f32, rounded once), all alike
/// Device   as ProcessGroup
/// Saves    x, weight
/// Throws   Error as gather_linear, and on rows that do not divide among the ranks
/// Source   as gather_linear
Tensor linear_scatter(const Tensor& x, const Tensor& weight, ProcessGroup& group,
                      Overlap form = Overlap::ring);

}  // namespace weft::distributed
