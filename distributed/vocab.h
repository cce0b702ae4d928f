#pragma once
#include "weft/autograd/cross_entropy.h"
#include "weft/distributed/process_group.h"

namespace weft::distributed {

/// The rows of a vocabulary that a rank holds: ceil(vocab / ranks) rows per rank; the last ranks
/// may have fewer rows or none.
struct VocabRange {
  std::int64_t first = 0, count = 0;
};
VocabRange vocab_range(std::int64_t vocab, int rank, int ranks);

/// Looks up ids in a table whose rows are sharded over the group. Rows of this rank are returned,
/// others are 0. The sum over the ranks equals embedding(), bit by bit.
///
/// Shapes  weight (vocab_range(...).count, C), ids (...) -> (..., C)
/// Dtypes  weight f32, f64, bf16, f16; ids i32, i64, equal on all ranks
/// Device  cpu, cuda, meta; does not communicate
/// Saves   ids
/// Throws  Error "embedding: ids must be in [0, vocab), got i", and on a weight of another shape
/// Source  Shoeybi et al. 2019, arXiv:1909.08053
Tensor vocab_embedding(const Tensor& weight, const Tensor& ids, std::int64_t vocab,
                       const ProcessGroup& group);

/// linear_cross_entropy() with the rows of the head sharded over the group. Every rank holds the
/// full x and targets and gets the same bits of the loss. The gradient of x covers this rank's
/// classes only, so put copy_to_group() or gather_rows() before this op. Each row sends four
/// numbers, in one all-gather per chunk of rows: the maximum, the sum of exponentials, the target's
/// logit, and the sum of logits for label smoothing. Backward does not communicate.
///
/// Shapes  x (..., C), weight (vocab_range(...).count, C), targets (...); result (...) for none,
///         else a scalar
/// Dtypes  x and weight f32, f64, bf16, f16, equal; targets i32, i64. The loss is f64 for f64, else
///         f32
/// Device  as ProcessGroup
/// Saves   as linear_cross_entropy()
/// Throws  Error as linear_cross_entropy(), and on a weight of another shape; once differentiable
/// Source  Shoeybi et al. 2019, arXiv:1909.08053
Tensor vocab_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                           std::int64_t vocab, ProcessGroup& group,
                           const CrossEntropyOptions& options = {});

namespace detail {
/// vocab_cross_entropy with at most `chunk_rows` rows at a time; 0 chooses from the sizes.
Tensor vocab_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                           std::int64_t vocab, ProcessGroup& group,
                           const CrossEntropyOptions& options, std::int64_t chunk_rows);
}  // namespace detail

}  // namespace weft::distributed
