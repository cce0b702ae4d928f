#pragma once
#include <cstdint>
#include <span>

#include "weft/core/tensor.h"

namespace weft::nn {

/// Several sequences laid side by side in one row, (1, tokens), so that little is spent on
/// padding. Without tensors (the default) every row is one sequence. Made once for a batch and
/// handed to every layer as it is: data::PackedRows::packing(), or of().
///
/// Padding fills the ends of rows: packed rows have it in sequences of its own, rows that are one
/// sequence each behind their last token, with `padding` alone. What stands there, and how much of
/// it, changes no loss, no gradient, no count of a router and no capacity of an expert.
struct Packing {
  Tensor cu_seqlens = {};  ///< i32 (n + 1): sequence i is tokens [cu_seqlens[i], cu_seqlens[i + 1])
  Tensor positions = {};   ///< i32 (tokens) or (1, tokens): place of each token in its sequence
  Tensor padding = {};     ///< bool, one for each token: true where it is padding; null: none is
  Tensor known = {};       ///< what mark_checked() saw
  std::uint32_t known_version = 0;

  /// Sequences with these boundaries, on the device where the model is. Empty ones are legal.
  /// is_padding: empty, or for each sequence whether it is padding.
  /// Throws Error unless boundaries start at 0, never decrease, and leave no sequence longer than
  /// `longest` (GptConfig::seq), and is_padding has as many elements as there are sequences.
  static Packing of(std::span<const std::int32_t> boundaries, std::int64_t longest,
                    Device device = kCpu, std::span<const std::uint8_t> is_padding = {});

  /// Says that cu_seqlens has been checked; of() does.
  void mark_checked();
  /// Since mark_checked() nobody has replaced or written cu_seqlens: ops need not read it, and so
  /// never wait for a GPU.
  bool checked() const {
    return known.defined() && known.same(cu_seqlens) && known.version() == known_version;
  }

  /// Is there more than one sequence in a row?
  explicit operator bool() const { return cu_seqlens.defined() || positions.defined(); }
  /// Throws Error unless both tensors are there and ids (B, T), or x (B, T, C), is one row of as
  /// many tokens.
  void check_row(const Tensor& tokens) const;
  /// `values` (B, T), with `filler` in the place of padding.
  Tensor masked(const Tensor& values, double filler) const;
};

}  // namespace weft::nn
