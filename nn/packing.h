#pragma once
#include <cstdint>
#include <span>

#include "weft/core/tensor.h"

namespace weft::nn {

/// Several sequences laid side by side in one row, (1, tokens), so that nothing is spent on
/// padding. Without tensors (the default) every row is one sequence. Made once for a batch and
/// handed to every layer as it is: data::PackedRows::packing(), or of().
struct Packing {
  Tensor cu_seqlens;  ///< i32 (n + 1): sequence i is tokens [cu_seqlens[i], cu_seqlens[i + 1])
  Tensor positions;   ///< i32 (tokens) or (1, tokens): place of each token in its sequence
  Tensor known = {};  ///< what mark_checked() saw
  std::uint32_t known_version = 0;

  /// Sequences with these boundaries, on the device where the model is. Empty ones are legal.
  /// Throws Error unless they start at 0, never decrease, and leave no sequence longer than
  /// `longest` (GptConfig::seq).
  static Packing of(std::span<const std::int32_t> boundaries, std::int64_t longest,
                    Device device = kCpu);

  /// Says that cu_seqlens has been checked; of() does.
  void mark_checked();
  /// Since mark_checked() nobody has replaced or written cu_seqlens: ops need not read it, and so
  /// never wait for a GPU.
  bool checked() const {
    return known && known.same(cu_seqlens) && known.version() == known_version;
  }

  explicit operator bool() const { return cu_seqlens || positions; }
  /// Throws Error unless both tensors are there and ids (B, T), or x (B, T, C), is one row of as
  /// many tokens.
  void check_row(const Tensor& tokens) const;
};

}  // namespace weft::nn
