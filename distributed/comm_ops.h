#pragma once
#include "weft/distributed/process_group.h"

namespace weft::distributed {

// Communication as ops: each has a backward, which is another one of them. The gradients that they
// give belong to a loss that every rank of the group computes alike. The group has to outlive the
// tape. A group of one rank returns x itself.
//
// Dtypes   f32, f64, bf16 (added in f32, rounded once)
// Device   as ProcessGroup
// Saves    nothing
// Source   Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198

/// x as it is, in front of layers of which every rank has a part: backward adds up what they say
/// about x.
///
/// Shapes   x any, alike on all ranks -> like x
/// Throws   Error on a dtype that no floating op computes with
Tensor copy_to_group(const Tensor& x, ProcessGroup& group);

/// The sum of every rank's x, for a consumer that is the same on all ranks: backward hands its
/// gradient on. An x that is moved in and seen by nobody else is summed where it lies.
///
/// Shapes   x any -> like x
/// Throws   Error on a dtype that no floating op computes with
Tensor reduce_from_group(Tensor x, ProcessGroup& group);

// Rows are all axes but the last, flattened. What comes out keeps the number of axes; those in
// front of the rows are 1.

/// The rows of all ranks, in their order, for consumers that differ by rank: backward adds their
/// gradients up and takes back this rank's rows.
///
/// Shapes   x (..., n, C) with R rows, as many on every rank -> (1, ..., R ranks, C)
/// Throws   Error on an x with fewer than 2 axes, or a dtype that no floating op computes with
Tensor gather_rows(const Tensor& x, ProcessGroup& group);

/// The same for a consumer that is the same on all ranks: backward cuts this rank's rows out of
/// its gradient, and moves nothing.
///
/// Shapes   x (..., n, C) with R rows, as many on every rank -> (1, ..., R ranks, C)
/// Throws   Error as gather_rows
Tensor gather_rows_replicated(const Tensor& x, ProcessGroup& group);

/// This rank's rows of an x that all ranks have: backward gathers the others' gradients.
///
/// Shapes   x (..., n, C) with R rows, a multiple of the ranks -> (1, ..., R / ranks, C)
/// Throws   Error on an x with fewer than 2 axes or rows that do not divide among the ranks, or a
///          dtype that no floating op computes with
Tensor scatter_rows(const Tensor& x, ProcessGroup& group);

/// This rank's rows of the sum of every rank's x: backward gathers the others' gradients.
///
/// Shapes   x (..., n, C) with R rows, a multiple of the ranks -> (1, ..., R / ranks, C)
/// Throws   Error as scatter_rows
Tensor reduce_scatter_rows(const Tensor& x, ProcessGroup& group);

/// The last axis of all ranks side by side, for a consumer that is the same on all ranks: what a
/// head whose classes are spread over ranks needs where somebody wants its logits.
///
/// Shapes   x (..., c_r), c_r = columns[r] -> (..., sum of columns)
/// Throws   Error as gather_rows, and on an x with another last axis
Tensor gather_columns(const Tensor& x, ProcessGroup& group, const Rows& columns);

}  // namespace weft::distributed
