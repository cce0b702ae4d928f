#pragma once
#include "weft/nn/block.h"
#include "weft/nn/linear.h"

namespace weft::nn {

struct MtpOptions {
  std::int64_t depths = 0;  ///< tokens predicted beyond the next one; 0: none
  double weight = 0.1;      ///< of the mean loss of the depths in the total
  bool repeated = false;    ///< one layer serves all depths, each with dropout of its own
  bool detached = false;    ///< trains its own layers only, not trunk, embedding or head
};

/// One depth d of multi-token prediction. At place i it combines the previous depth's output with
/// the embedding of token i + d, and predicts token i + d + 1. Embedding and head are the model's.
///
///   h_d = norm(block(eh_proj(concat(enorm(embedding), hnorm(h_{d-1})))))
///
/// Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 2.2.
struct MtpDepth : Module {
  Norm enorm, hnorm;
  Linear eh_proj;  // (C, 2C), no bias; the embedding comes first
  Block block;
  Norm norm;

  /// Sizes come from `block`; the norms have the kind and width of its norms.
  explicit MtpDepth(Block block);
  /// embedded and h (B, T, C) -> (B, T, C). Place i keeps its position at every depth.
  Trunk operator()(const Tensor& embedded, const Tensor& h, const TokenContext& context = {}) const;
  /// The same pass; only its inputs are kept for backward. `before_use`, if not null, is called
  /// before each run of the pass, and must outlive backward.
  Trunk recomputed(const Tensor& embedded, const Tensor& h, const TokenContext& context,
                   const std::function<void(const Module&)>& before_use = {}) const;
  void visit(Visitor& v) override;
  std::string describe() const override { return "MtpDepth"; }
};

/// True where the place to the right is not the next token: at the ends of the sequences of a
/// packed row and, if this rank holds a part of the row, at the ends of its slices.
///
/// Shapes  positions (T) or (1, T), within each sequence  ->  (1, T) bool
/// Dtypes  i32, i64
/// Device  cpu, cuda, meta
Tensor piece_ends(const Tensor& positions);

/// Shifts x one place to the left; `filler` enters at the end. In a packed row each sequence shifts
/// separately; in a part of a row each slice does, and the filler replaces a token of another rank.
/// Shapes  x (..., T)  ->  (..., T)
/// Dtypes  any
/// Device  cpu, cuda, meta; nothing is copied to the host
/// Throws  Error when a packed row is not (1, T)
Tensor roll_left(const Tensor& x, const Packing& packing = {}, double filler = 0);

}  // namespace weft::nn
