#pragma once
#include "weft/core/fields.h"
#include "weft/distributed/process_group.h"

namespace weft::distributed {

/// How a product overlaps with the communication of its rows.
enum class Overlap : std::uint8_t {
  none,      ///< no overlap
  ring,      ///< one rank's rows at a time: the next rows are in flight while these are multiplied
  pipeline,  ///< sums: some columns at a time, reduced while the next columns are multiplied
};
inline constexpr Word<Overlap> kOverlapWords[] = {
    {"none", Overlap::none}, {"ring", Overlap::ring}, {"pipeline", Overlap::pipeline}};

/// linear(gather_rows(x), weight, bias), where the rows of other ranks arrive in a ring while the
/// local ones are multiplied. Backward gathers x again during the product for its gradient, and
/// reduce-scatters that gradient during the product for the weight's gradient. Only x is saved.
///
/// Shapes   x (..., n, C) with R rows on every rank, weight (N, C), bias (N) or null
///          -> (1, ..., R ranks, N)
/// Dtypes   f32, f64, bf16, f16, all equal
/// Device   as ProcessGroup
/// Saves    x, weight
/// Throws   Error on an x with fewer than 2 axes, a weight or bias of another shape, mixed dtypes;
///          once differentiable
/// Source   Wang et al. 2023, "Overlap Communication with Dependent Computation via Decomposition",
///          doi:10.1145/3567955.3567959
Tensor gather_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     ProcessGroup& group);

/// linear(copy_to_group(x), weight, bias), where backward sums the gradient of x over the ranks
/// during the product for the weight's gradient: the same bits, sooner.
///
/// Shapes   x (..., n, C), weight (N, C), bias (N) or null -> (..., n, N)
/// Dtypes   f32, f64, bf16, f16, all equal
/// Device   as ProcessGroup
/// Saves    x, weight
/// Throws   Error as gather_linear
/// Source   Shoeybi et al. 2019, arXiv:1909.08053, section 3
Tensor copy_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, ProcessGroup& group);

/// reduce_scatter_rows(linear(x, weight)), where finished rows (ring) or columns (pipeline) are in
/// flight while the next ones are multiplied. Values are added in rank order. Backward gathers dy
/// in a ring during the product for dx. On a GPU both forms run as a pipeline.
///
/// Shapes   x (..., n, K) with R rows, a multiple of the ranks, weight (N, K)
///          -> (1, ..., R / ranks, N)
/// Dtypes   f32, f64, bf16, f16 (added in f32, rounded once), all equal
/// Device   as ProcessGroup
/// Saves    x, weight
/// Throws   Error as gather_linear, and on rows that do not divide among the ranks
/// Source   as gather_linear
Tensor linear_scatter(const Tensor& x, const Tensor& weight, ProcessGroup& group,
                      Overlap form = Overlap::ring);

}  // namespace weft::distributed
