#pragma once
#include <cstdint>
#include <optional>

#include "weft/nn/packing.h"

namespace weft::nn {

class KvCache;
struct RotaryTable;

/// The part of a batch's tokens, all sequences one after another, that this rank works on.
struct TokenPart {
  std::int64_t sequences = 0, tokens = 0;  ///< of the whole batch, and of each sequence
  std::int64_t first = 0, count = 0;       ///< which of the sequences * tokens are here

  /// Is x (1, count, dim), as layers see such a part?
  bool is_part(const Tensor& x) const {
    return x.ndim() == 3 && x.dim(0) == 1 && x.dim(1) == count;
  }
};

/// What layers must know of the tokens that they are called on, besides their values:
///   attention(x, {.packing = p, .rotary = &table})
/// By default every row is one sequence of its own, all of it is here, and nothing came before it.
struct TokenContext {
  Packing packing = {};                 ///< several sequences in one row, and padding
  const RotaryTable* rotary = nullptr;  ///< null: queries and keys are not rotated
  /// x follows the tokens in the cache, of which `layer` is this layer's entry. A packed row cannot
  /// have one.
  KvCache* cache = nullptr;
  int layer = 0;
  /// x is this part of the batch, (1, count, dim), and what is packed describes the whole batch.
  /// Attention sees all tokens: its first product gathers them.
  std::optional<TokenPart> part = {};
};

}  // namespace weft::nn
