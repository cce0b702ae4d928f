#pragma once
#include "weft/distributed/process_group.h"

namespace weft::distributed {

// Collectives as differentiable ops: the backward of each op is another one of them. Gradients
// assume that every rank of the group computes the same loss. The group must outlive the tape. A
// group of one rank returns x itself.
//
// Dtypes   f32, f64, bf16, f16 (added in f32, rounded once)
// Device   as ProcessGroup
// Saves    nothing
// Source   Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198

/// Returns x, as input of layers that are sharded over the ranks. Backward sums the gradient of x
/// over the ranks.
///
/// Shapes   x any, equal on all ranks -> as x
/// Throws   Error on a dtype that no floating op computes with
Tensor copy_to_group(const Tensor& x, ProcessGroup& group);

/// The sum of x over the ranks, for a consumer that is the same on all ranks. Backward passes the
/// gradient through. The sum is computed in place if x is moved in and no other handle refers to
/// it.
///
/// Shapes   x any -> as x
/// Throws   Error on a dtype that no floating op computes with
Tensor reduce_from_group(Tensor x, ProcessGroup& group);

// Rows are all axes but the last, flattened. Results keep the number of axes; the axes before the
// rows have length 1.

/// The rows of all ranks, in rank order, for consumers that differ by rank. Backward
/// reduce-scatters the gradients.
///
/// Shapes   x (..., n, C) with R rows on every rank -> (1, ..., R ranks, C)
/// Throws   Error on an x with fewer than 2 axes, or a dtype that no floating op computes with
Tensor gather_rows(const Tensor& x, ProcessGroup& group);

/// The same for a consumer that is the same on all ranks. Backward takes this rank's rows of the
/// gradient and does not communicate.
///
/// Shapes   x (..., n, C) with R rows on every rank -> (1, ..., R ranks, C)
/// Throws   Error as gather_rows
Tensor gather_rows_replicated(const Tensor& x, ProcessGroup& group);

/// This rank's rows of an x that all ranks hold. Backward all-gathers the gradient.
///
/// Shapes   x (..., n, C) with R rows, a multiple of the ranks -> (1, ..., R / ranks, C)
/// Throws   Error on an x with fewer than 2 axes or rows that do not divide among the ranks, or a
///          dtype that no floating op computes with
Tensor scatter_rows(const Tensor& x, ProcessGroup& group);

/// This rank's rows of the sum of x over the ranks. Backward all-gathers the gradient.
///
/// Shapes   x (..., n, C) with R rows, a multiple of the ranks -> (1, ..., R / ranks, C)
/// Throws   Error as scatter_rows
Tensor reduce_scatter_rows(const Tensor& x, ProcessGroup& group);

/// Concatenates the last axis over the ranks, for a consumer that is the same on all ranks, such as
/// code that needs all logits of a head whose classes are sharded.
///
/// Shapes   x (..., c_r), c_r = columns[r] -> (..., sum of columns)
/// Throws   Error as gather_rows, and on an x with another last axis
Tensor gather_columns(const Tensor& x, ProcessGroup& group, const Rows& columns);

}  // namespace weft::distributed
