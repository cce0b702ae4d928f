#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "weft/core/tensor.h"
#include "weft/nn/packing.h"

namespace weft::data {

/// A part of a document, or all of it, in a row.
struct PackedPiece {
  std::int64_t first = 0;  ///< its first token, counted over all documents laid end to end
  std::int32_t length = 0;
  bool goes_on = false;  ///< whether the document has more tokens after it
};

/// Which pieces of documents lie in which row: 16 bytes a piece, however long it is.
class PackingPlan {
 public:
  /// Puts each document, in order, into the first row that has room for all of it. A document
  /// longer than seq is cut into pieces of seq. Document i ends before token ends[i]; empty ones
  /// are skipped. Throws Error unless 1 <= seq < 2^31.
  PackingPlan(std::span<const std::int64_t> ends, std::int64_t seq);

  std::int64_t seq() const { return seq_; }
  std::int64_t rows() const { return std::ssize(first_piece_) - 1; }
  std::span<const PackedPiece> row(std::int64_t i) const;

 private:
  std::int64_t seq_;
  std::vector<PackedPiece> pieces_;        ///< row after row
  std::vector<std::int64_t> first_piece_;  ///< of each row, then how many there are
};

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

/// Packs documents as PackingPlan does; the target of the last token of a piece is still the next
/// token.
/// Throws Error unless seq >= 1.
PackedRows pack_documents(const std::vector<std::vector<std::int32_t>>& documents,
                          std::int64_t seq);

}  // namespace weft::data
