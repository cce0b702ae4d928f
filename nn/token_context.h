#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "weft/nn/packing.h"

namespace weft::nn {

class KvCache;
struct RotaryTable;

/// The part of a batch's tokens (all sequences concatenated) that this rank processes.
struct TokenPart {
  std::int64_t sequences = 0, tokens = 0;  ///< number in the whole batch, and tokens in each
  std::int64_t first = 0, count = 0;       ///< the range of the sequences * tokens on this rank

  /// True if x has the shape (1, count, dim), in which layers receive the part.
  bool is_part(const Tensor& x) const {
    return x.ndim() == 3 && x.dim(0) == 1 && x.dim(1) == count;
  }
};

/// What layers need to know about their tokens besides the values:
///   attention(x, {.packing = p, .rotary = &table})
/// By default every row is one sequence, this rank has all of it, and no tokens precede it.
struct TokenContext {
  Packing packing = {};                 ///< several sequences in one row, and padding
  const RotaryTable* rotary = nullptr;  ///< null: queries and keys are not rotated
  /// x follows the tokens in this cache; `layer` is this layer's entry. Not for packed rows.
  KvCache* cache = nullptr;
  /// In place of `cache`: each row of x follows the tokens in a cache of its own, of one row.
  std::span<KvCache* const> rows = {};
  bool has_cache() const { return cache || !rows.empty(); }
  int layer = 0;
  /// Which keys a token sees: broadcasts to (batch, heads, tokens, keys), see `mask` of
  /// attention(). Rows of an encoder that are padded: (batch, 1, 1, tokens) bool, false for the
  /// padding. Not for packed rows or with a cache.
  Tensor mask = {};
  /// x is this part of the batch, (1, count, dim), while `packing` describes the whole batch.
  /// Attention sees all tokens: its first projection gathers them.
  std::optional<TokenPart> part = {};
};

}  // namespace weft::nn
