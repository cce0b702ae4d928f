#pragma once
#include <cstdint>
#include <vector>

#include "weft/core/tensor.h"
#include "weft/nn/packing.h"

namespace weft::data {

/// Documents laid side by side in rows of equal length, so that little is wasted on padding.
struct PackedRows {
  Tensor tokens;     ///< (rows, seq), i32; 0 in the padding
  Tensor targets;    ///< (rows, seq), i32: the next token of the same document, else kIgnore
  Tensor positions;  ///< (rows, seq), i32: place in the document piece, from 0
  /// Per row: where each piece begins, then seq. Padding counts as a last piece of its own.
  std::vector<std::vector<std::int32_t>> cu_seqlens;
  std::vector<std::int32_t> filled;  ///< per row: how many tokens are not padding

  std::int64_t rows() const { return tokens.dim(0); }
  /// Boundaries of `count` rows flattened to count * seq tokens, i32: what attention takes.
  /// Throws Error on rows that there are not, and unless every row has its boundaries.
  Tensor flat_cu_seqlens(std::int64_t first, std::int64_t count) const;
  /// The same rows as a model takes them, on its device: tokens and targets as one row go with it,
  /// `model.losses(flat(tokens), flat(targets), rows.packing(first, count))`. It knows the padding.
  /// Throws Error as flat_cu_seqlens(), and unless every row says how much of it is filled.
  nn::Packing packing(std::int64_t first, std::int64_t count, Device device = kCpu) const;
};

/// Puts each document, in order, into the first row that has room for all of it. A document longer
/// than seq is cut into pieces of seq; the last token of a piece still has the next one as target.
/// Empty documents are left out.
/// Throws Error unless seq >= 1.
PackedRows pack_documents(const std::vector<std::vector<std::int32_t>>& documents,
                          std::int64_t seq);

}  // namespace weft::data
