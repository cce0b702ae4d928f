#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// Maps the k slots of T tokens to rows sorted by expert; the rows of one expert are ordered by
/// token. Slot j of token t has the number t * k + j.
struct ExpertRows {
  Tensor row_of;   ///< (T, k) i64; -1: the slot has no row
  Tensor slot_of;  ///< (N) i64; -1: a padding row
  Tensor rows;     ///< (E) i64 on the host: number of rows of each expert; null: see know_rows()
  Tensor counts;   ///< the number of rows of each expert, on the device of row_of
};

struct RowOptions {
  std::int64_t alignment = 1;
  std::int64_t capacity = 0;  ///< 0: as many rows as slots
  bool read = true;           ///< false: the host reads nothing; know_rows() must follow
};

/// Sorts slots by expert. Without capacity the host reads the number of rows of each expert, so it
/// waits once for a GPU. With capacity every expert has exactly that many rows, later tokens get no
/// row, and the host reads nothing. On the meta device slots are shared evenly.
///
/// Shapes   experts (T, k)  ->  row_of (T, k), slot_of (N), rows (E)
/// Dtypes   experts i32, i64 (an index outside [0, E) gets no row); the result i64
/// Device   cpu, cuda (at most 2048 experts), meta
/// Saves    nothing
/// Throws   Error on wrong shapes or dtypes, alignment < 1, capacity < 0 or no multiple of it
ExpertRows sort_by_expert(const Tensor& experts, std::int64_t count, const RowOptions& o = {});
/// Completes a sort with read = false. `rows`, (E) i64 on the host, is the number of rows of each
/// expert, which the caller already knows, as from an exchange of `counts` between ranks.
/// Throws Error on a wrong shape, dtype or device, on a negative number, and if the rows sum to
/// more than the slots allow
void know_rows(ExpertRows& sorted, const Tensor& rows);

/// Gathers the rows of the experts: row i is a copy of its slot's token, a padding row is 0. The
/// gradient of a token is the sum over its slots, in slot order.
///
/// Shapes   x (T, C)  ->  (N, C)
/// Dtypes   f32, f64, bf16, f16 (the gradient is summed in f32)
/// Device   cpu, cuda, meta
/// Saves    row_of, slot_of; differentiable any number of times
/// Throws   Error when x does not have the T tokens of `rows`
Tensor permute_tokens(const Tensor& x, const ExpertRows& rows);

/// permute_tokens() for one number per slot.
///
/// Shapes   probs (T, k)  ->  (N)
/// Dtypes   f32, f64, bf16, f16
/// Device   cpu, cuda, meta
/// Saves    row_of, slot_of; differentiable any number of times
/// Throws   Error when the shape of probs differs from row_of's
Tensor permute_probs(const Tensor& probs, const ExpertRows& rows);

/// Back to tokens: sums the rows of each token's slots, in slot order.
///
/// Shapes   y (N, C)  ->  (T, C)
/// Dtypes   f32, f64, bf16, f16 (summed in f32)
/// Device   cpu, cuda, meta
/// Saves    row_of, slot_of; differentiable any number of times
/// Throws   Error when y does not have the N rows of `rows`
Tensor combine_tokens(const Tensor& y, const ExpertRows& rows);

}  // namespace weft
