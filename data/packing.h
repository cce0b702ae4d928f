#pragma once
#include <cstdint>
#include <vector>

#include "weft/core/tensor.h"
#include "weft/nn/packing.h"

namespace weft::data {

/// Documents packed into rows of equal length, to waste little on padding.
struct PackedRows {
  Tensor tokens;     ///< (rows, seq), i32; 0 in the padding
  Tensor targets;    ///< (rows, seq), i32: the next token of the same document, else kIgnore
  Tensor positions;  ///< position in the document piece, from 0
  /// Per row: the start of each piece, then seq. The padding counts as one more piece.
  std::vector<std::vector<std::int32_t>> cu_seqlens;
  std::vector<std::int32_t> filled;  ///< per row: number of tokens that are not padding

  std::int64_t rows() const { return tokens.dim(0); }
  /// Boundaries of `count` rows flattened to count * seq tokens, i32, as attention expects them.
  /// Throws Error on rows out of range, and unless every row has its boundaries.
  Tensor flat_cu_seqlens(std::int64_t first, std::int64_t count) const;
  /// The same rows in the form that a model expects, on its device. Pass tokens and targets
  /// flattened to one row: `model.losses(flat(tokens), flat(targets), rows.packing(first, count))`.
  /// It marks the padding.
  /// Throws Error like flat_cu_seqlens(), and unless every row has its `filled` count.
  nn::Packing packing(std::int64_t first, std::int64_t count, Device device = kCpu) const;
};

/// Puts each document, in order, into the first row that has room for all of it. A document longer
/// than seq is cut into pieces of seq; the target of a piece's last token is still the next token.
/// Empty documents are skipped.
/// Throws Error unless seq >= 1.
PackedRows pack_documents(const std::vector<std::vector<std::int32_t>>& documents,
                          std::int64_t seq);

}  // namespace weft::data
