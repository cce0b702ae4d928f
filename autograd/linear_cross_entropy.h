#pragma once
#include <functional>

#include "weft/autograd/cross_entropy.h"
#include "weft/core/kernels/cross_entropy_part.h"
#include "weft/core/tensor.h"

namespace weft {

/// cross_entropy(linear(x, weight), targets) without storing all logits: rows are processed in
/// chunks. For mean and sum each chunk's logits are turned into gradients at once, and backward
/// only scales these by the upstream gradient. For Reduction::none, backward recomputes each
/// chunk's logits. Losses equal those of the two ops up to rounding (bitwise if the products are
/// the same calls). With bf16 the weight gradient is summed in f32, and
/// rounded where the weight has no f32 main_grad. With f16 backward divides the gradients of a mean
/// by the number of targets after a loss scale has multiplied them, so that they do not underflow.
///
/// Shapes  x (..., C), weight (V, C), any strides; targets (...); result (...) for none, else a
///         scalar
/// Dtypes  x and weight f32, f64, bf16, f16, alike; targets i32, i64. The loss is f64 for f64, else
///         f32
/// Device  cpu, cuda; nothing is copied to the host
/// Saves   the gradients of x and weight for an upstream gradient of 1 (that of an f16 weight in
///         f32); for Reduction::none x, weight, targets, and each row's maximum and sum of
///         exp(logit - maximum)
/// Throws  Error on shapes, dtypes or devices that do not match, V = 0, label_smoothing outside [0,
///         1), and a target that is neither in [0, V) nor ignore_index (for a GPU at the host's
///         next synchronization). Once differentiable.
/// Source  Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models",
///         arXiv:2411.09009, for the idea; the gradient in the forward pass is Hsu et al. 2024,
///         "Liger Kernel", arXiv:2410.10989
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options = {});

namespace detail {

/// What limits the logits of one chunk: an L2 cache if 512 rows fit, 64 MiB, or 1 GiB.
enum class LogitSpace { cpu_cache, cpu_memory, gpu_memory };
/// Rows of one chunk; depends on shapes alone.
std::int64_t loss_chunk_rows(std::int64_t rows, std::int64_t classes, DType dtype,
                             LogitSpace space);
/// One rank's shard of a head whose classes are split over ranks.
struct ClassPart {
  ClassRange range;       ///< the classes of this rank's weight
  std::int64_t most = 0;  ///< the largest number of classes on any rank
  /// All-gathers the statistics: (n, 4) of this rank -> (ranks, n, 4), in the same order on every
  /// rank. Called once per chunk of rows; every rank calls it equally often.
  std::function<Tensor(const Tensor& own)> gather;
};
/// linear_cross_entropy of one shard of the classes: the same loss on every rank, this rank's share
/// of the gradient of x, and the gradient of its own weight (n, C), where n may be 0.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options, const ClassPart& part,
                            std::int64_t chunk_rows = 0);
/// linear_cross_entropy with at most `chunk_rows` rows per chunk; 0: loss_chunk_rows() decides.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            const CrossEntropyOptions& options, std::int64_t chunk_rows);

}  // namespace detail
}  // namespace weft
