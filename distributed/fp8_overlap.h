#pragma once
#include "weft/autograd/fp8.h"
#include "weft/distributed/overlap.h"

namespace weft::distributed {

/// How the rows of an FP8 layer travel.
struct Fp8Rows {
  Overlap overlap = Overlap::none;
  /// Backward gathers x again in place of keeping the gathered codes; with overlap it always does.
  bool gathers_again = false;
};

/// fp8_linear(gather_rows(x), weight, bias) for a weight whose outputs are sharded over the group.
/// The rows travel as e4m3 codes, one byte a number, rounded with one scale: the largest magnitude
/// is reduced over the group first, so the gathered codes are those of one rank that rounds all
/// rows. With overlap as gather_linear(). The gradient of x is summed over ranks in the dtype of x,
/// while the weight's gradient is computed.
///
/// A recipe that does not travel (Recipe::travels()) gathers x itself and rounds afterwards.
///
/// Shapes   x (..., n, K) with R rows on every rank, weight (N, K), bias (N) or null
///          -> (1, ..., R ranks, N); K, N and R ranks are multiples of 16; with overlap on a GPU R
///          is
/// Dtypes   f32, bf16, one dtype for all
/// Device   as ProcessGroup
/// Saves    the codes of the gathered x, or of x if it is gathered again; those of the weight.
///          Never a buffer that rows travel through
/// Throws   Error as gather_linear() and fp8_linear(), and on overlap with a recipe that does not
///          travel; once differentiable
/// Source   TransformerEngine, pytorch/module/linear.py; overlap as gather_linear()
Tensor fp8_gather_linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const fp8::Recipe& recipe, const fp8::LayerState* state,
                         ProcessGroup& group, const Fp8Rows& rows = {});

/// reduce_scatter_rows(fp8_linear(x, weight)) for a weight whose inputs are sharded. The sum
/// travels in the dtype of x. Backward gathers dy as e5m2 codes with one scale, also as
/// linear_scatter() with overlap.
///
/// Shapes   x (..., n, K) with R rows, a multiple of the ranks, weight (N, K)
///          -> (1, ..., R / ranks, N); K, N and R are multiples of 16; with overlap on a GPU also
///          R / ranks
/// Dtypes   f32, bf16 (added in f32, rounded once)
/// Device   as ProcessGroup
/// Saves    the codes of x and weight
/// Throws   Error as linear_scatter() and fp8_linear(), and on overlap with a recipe that does not
///          travel; once differentiable
/// Source   as fp8_gather_linear
Tensor fp8_linear_scatter(const Tensor& x, const Tensor& weight, const fp8::Recipe& recipe,
                          const fp8::LayerState* state, ProcessGroup& group,
                          Overlap overlap = Overlap::none);

}  // namespace weft::distributed
