#pragma once
#include "weft/nn/block.h"
#include "weft/nn/linear.h"

namespace weft::nn {

struct MtpOptions {
  std::int64_t depths = 0;  ///< tokens predicted beyond the next one; 0: none
  double weight = 0.1;      ///< of the mean loss of the depths in the total
  bool repeated = false;    ///< one layer serves all depths
  bool detached = false;    ///< trains its own layers only: not the trunk, embedding and head
};

/// One depth of multi-token prediction. Place i takes the depth before's output there and the
/// embedding of token i + d, and answers for token i + d + 1. Embedding and head are the model's.
///
///   h_d = norm(block(eh_proj(concat(enorm(embedding), hnorm(h_{d-1})))))
///
/// Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 2.2.
struct MtpDepth : Module {
  Norm enorm, hnorm;
  Linear eh_proj;  // (C, 2C), no bias; the embedding comes first
  Block block;
  Norm norm;

  /// `block` brings its sizes, the norms are like its own.
  explicit MtpDepth(Block block);
  /// embedded and h (B, T, C) -> (B, T, C). Place i keeps its position, whatever the depth.
  Trunk operator()(const Tensor& embedded, const Tensor& h, const TokenContext& context = {}) const;
  /// The same, of which backward keeps only what goes in.
  Trunk recomputed(const Tensor& embedded, const Tensor& h, const TokenContext& context) const;
  void visit(Visitor& v) override;
  std::string describe() const override { return "MtpDepth"; }
  MtpDepth like() const { return MtpDepth(block.like()); }
};

/// Where the place to the right is not the next token: the ends of the sequences of a packed row
/// and, in the part of a row that one of several ranks holds, the ends of its pieces.
///
/// Shapes  positions (T) or (1, T), of tokens in their sequences  ->  (1, T) bool
/// Dtypes  i32, i64
/// Device  cpu, cuda, meta
Tensor piece_ends(const Tensor& positions);

/// x moved one place to the left, as a sequence is seen from one token later; `filler` comes in
/// last. In a packed row each sequence moves by itself; in a part of one, each piece, at whose end
/// the filler stands for the token that another rank may have.
/// Shapes  x (..., T)  ->  (..., T)
/// Dtypes  any
/// Device  cpu, cuda, meta; nothing is copied to the host
/// Throws  Error when a packed row is not (1, T)
Tensor roll_left(const Tensor& x, const Packing& packing = {}, double filler = 0);

}  // namespace weft::nn
