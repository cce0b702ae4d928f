#pragma once
#include <cstdint>
#include <span>

#include "weft/core/tensor.h"

namespace weft::nn {

/// Several sequences side by side in one row, (1, tokens), to avoid padding. Without tensors (the
/// default) every row is one sequence. Made once per batch, by data::PackedRows::packing() or of(),
/// and passed unchanged to every layer.
///
/// Padding fills the ends of rows: in a packed row it forms sequences of its own; in rows of one
/// sequence each it follows the last token, and only `padding` is set. Its values and length change
/// no loss, no gradient, no router count and no expert capacity.
struct Packing {
  Tensor cu_seqlens = {};  ///< i32 (n + 1): sequence i is tokens [cu_seqlens[i], cu_seqlens[i + 1])
  Tensor positions = {};   ///< i32 (tokens) or (1, tokens): position of each token in its sequence
  Tensor padding = {};     ///< bool, one per token: true for padding; null: no padding
  /// The equally long rows of a batch that lie side by side in this row. Random layers then draw
  /// the numbers of separate rows in a RandomScope whose first_global_row is divided by it.
  std::int64_t rows = 1;
  Tensor known = {};  ///< the cu_seqlens that mark_checked() recorded
  std::uint32_t known_version = 0;

  /// Sequences with these boundaries, on `device`; sequences may be empty. is_padding is empty or
  /// says for each sequence whether it is padding.
  /// Throws Error unless boundaries start at 0, never decrease and keep every sequence within
  /// `longest` (GptConfig::seq) tokens, and is_padding has one element per sequence.
  static Packing of(std::span<const std::int32_t> boundaries, std::int64_t longest,
                    Device device = kCpu, std::span<const std::uint8_t> is_padding = {});

  /// Records that cu_seqlens has been checked; of() calls it.
  void mark_checked();
  /// True if cu_seqlens was neither replaced nor written since mark_checked(): ops then do not read
  /// it, and so do not wait for a GPU.
  bool checked() const {
    return known.defined() && known.same(cu_seqlens) && known.version() == known_version;
  }

  /// True if a row holds more than one sequence.
  explicit operator bool() const { return cu_seqlens.defined() || positions.defined(); }
  /// Throws Error unless both tensors are set and ids (B, T), or x (B, T, C), is one row of that
  /// length.
  void check_row(const Tensor& tokens) const;
  /// `values` (B, T) with padding replaced by `filler`.
  Tensor masked(const Tensor& values, double filler) const;
};

}  // namespace weft::nn
