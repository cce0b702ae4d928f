#pragma once
#include <functional>

#include "weft/autograd/cross_entropy.h"
#include "weft/core/kernels/cross_entropy_part.h"
#include "weft/core/tensor.h"

namespace weft {

/// cross_entropy(linear(x, weight), targets) without ever holding all logits: rows go through in
/// chunks, and for mean and sum a chunk's logits become its part of the gradient at once, so that
/// backward only multiplies by its cotangent. With none, backward makes each chunk's logits again.
/// The losses are those of the two ops to rounding (bit by bit where the products are the same
/// calls); bf16 sums the weight's gradient in f32 over all chunks before it rounds.
///
/// Shapes  x (..., C), weight (V, C), any strides; targets (...); result (...) for none, else a
///         scalar
/// Dtypes  x and weight f32, f64, bf16, alike; targets i32, i64. The loss is f64 for f64, else f32
/// Device  cpu, cuda; nothing is copied to the host
/// Saves   the gradients of x and weight for a loss of cotangent 1; with none x, weight, targets,
///         and per row the maximum and the sum of exp(logit - maximum)
/// Throws  Error on shapes, dtypes or devices that do not fit, V = 0, label_smoothing outside
///         [0, 1), and a target that is neither in [0, V) nor ignore_index (for a GPU the next
///         time that the host waits for it). Once differentiable.
/// Source  Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models",
///         arXiv:2411.09009, for the idea; the gradient in the forward pass is Hsu et al. 2024,
///         "Liger Kernel", arXiv:2410.10989
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options = {});

namespace detail {

/// Rows of one chunk: follows from shapes alone. `cached`: few rows that stay in a processor's
/// cache beat many.
std::int64_t loss_chunk_rows(std::int64_t rows, std::int64_t classes, DType dtype,
                             bool cached = false);
/// A head of which every rank has some of the classes.
struct ClassPart {
  ClassRange range;       ///< those of this weight
  std::int64_t most = 0;  ///< of any rank
  /// What the ranks tell each other: (n, 4) of this rank -> (ranks, n, 4), in the same order on
  /// all of them. Called once for each chunk of rows, as often on every rank.
  std::function<Tensor(const Tensor& own)> gather;
};
/// linear_cross_entropy of a part: the same loss on every rank, its share of the gradient of x, and
/// the gradient of its own weight (n, C), where n may be 0.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options, const ClassPart& part,
                            std::int64_t chunk_rows = 0);
/// linear_cross_entropy with at most `chunk_rows` rows at a time; 0 leaves the choice to
/// loss_chunk_rows().
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options, std::int64_t chunk_rows);

}  // namespace detail
}  // namespace weft
