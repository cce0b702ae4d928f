#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// Where each of the k slots of T tokens stands among the rows of the experts: rows go by expert,
/// those of one expert by token. Slot j of token t has the number t * k + j.
struct ExpertRows {
  Tensor row_of;   ///< (T, k) i64; -1: the slot has no row
  Tensor slot_of;  ///< (N) i64; -1: a filler row
  Tensor rows;     ///< (E) i64 on the host: how many rows each expert has; null: see know_rows()
  Tensor counts;   ///< the same on the device of the others
};

struct RowOptions {
  std::int64_t alignment = 1;
  std::int64_t capacity = 0;  ///< 0: as many rows as slots
  bool read = true;           ///< false: the host reads nothing, and know_rows() has to follow
};

/// Sorts slots by expert. Without capacity the host reads the number of rows of each expert: on a
/// GPU it waits once. With capacity every expert has exactly that many rows, later tokens find no
/// row, nothing is read and nobody waits. On the meta device, where experts have no values, they
/// count as evenly shared.
///
/// Shapes   experts (T, k)  ->  row_of (T, k), slot_of (N), rows (E)
/// Dtypes   experts i32, i64 (a number outside [0, E) has no row); the result i64
/// Device   cpu, cuda (at most 2048 experts), meta
/// Saves    nothing
/// Throws   Error on other shapes and dtypes, alignment < 1, capacity < 0 or not a multiple of it
ExpertRows sort_by_expert(const Tensor& experts, std::int64_t count, const RowOptions& o = {});
/// Ends a sort with read = false, by the number of rows of each expert: (E) i64 on the host, which
/// the caller knows from elsewhere, as from an exchange of `counts` between ranks.
/// Throws Error unless rows is such a tensor, on a number below 0, and when they are more rows than
/// the slots can make
void know_rows(ExpertRows& sorted, const Tensor& rows);

/// The rows of the experts: row i is a copy of its slot's token, a filler row is 0. The gradient of
/// a token is the sum over its slots, in their order.
///
/// Shapes   x (T, C)  ->  (N, C)
/// Dtypes   f32, f64, bf16 (the gradient is summed in f32)
/// Device   cpu, cuda, meta
/// Saves    row_of, slot_of; can be differentiated any number of times
/// Throws   Error when x does not have the T tokens of rows
Tensor permute_tokens(const Tensor& x, const ExpertRows& rows);

/// The same for one number a slot.
///
/// Shapes   probs (T, k)  ->  (N)
/// Dtypes   f32, f64, bf16
/// Device   cpu, cuda, meta
/// Saves    row_of, slot_of; can be differentiated any number of times
/// Throws   Error when probs has not the shape of row_of
Tensor permute_probs(const Tensor& probs, const ExpertRows& rows);

/// Back to tokens: the sum of the rows of a token's slots, in their order.
///
/// Shapes   y (N, C)  ->  (T, C)
/// Dtypes   f32, f64, bf16 (summed in f32)
/// Device   cpu, cuda, meta
/// Saves    row_of, slot_of; can be differentiated any number of times
/// Throws   Error when y does not have the N rows of rows
Tensor combine_tokens(const Tensor& y, const ExpertRows& rows);

}  // namespace weft
