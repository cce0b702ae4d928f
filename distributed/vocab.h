#pragma once
#include "weft/autograd/cross_entropy.h"
#include "weft/distributed/process_group.h"

namespace weft::distributed {

/// Which rows of a vocabulary a rank has: equal parts of ceil(vocab / ranks), of which the last
/// ones may be short or empty.
struct VocabRange {
  std::int64_t first = 0, count = 0;
};
VocabRange vocab_range(std::int64_t vocab, int rank, int ranks);

/// Rows of a table that is spread over the group, by ids among all of its rows: those that this
/// rank has, 0 for others. Their sum over the ranks is what embedding() gives, bit by bit.
///
/// Shapes  weight (vocab_range(...).count, C), ids (...) -> (..., C)
/// Dtypes  weight f32, f64, bf16; ids i32, i64, alike on all ranks
/// Device  cpu, cuda, meta; communicates nothing
/// Saves   ids
/// Throws  Error "embedding: ids must be in [0, vocab), got i", and on a weight of another shape
/// Source  Shoeybi et al. 2019, arXiv:1909.08053
Tensor vocab_embedding(const Tensor& weight, const Tensor& ids, std::int64_t vocab,
                       const ProcessGroup& group);

/// linear_cross_entropy() where each rank of the group has some of the head's rows. Every rank has
/// the whole x and targets, and gets the same bits of the loss; its gradient of x is what its own
/// classes say, so that x wants copy_to_group() or gather_rows() in front. Per row four numbers go
/// over the network, in one all-gather a chunk of rows: maximum, sum of exponentials, the target's
/// logit, and the sum of the logits for label smoothing. Backward communicates nothing.
///
/// Shapes  x (..., C), weight (vocab_range(...).count, C), targets (...); result (...) for none,
///         else a scalar
/// Dtypes  x and weight f32, f64, bf16, alike; targets i32, i64. The loss is f64 for f64, else f32
/// Device  as ProcessGroup
/// Saves   as linear_cross_entropy()
/// Throws  Error as linear_cross_entropy(), and on a weight of another shape. Once differentiable.
/// Source  Shoeybi et al. 2019, arXiv:1909.08053
Tensor vocab_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                           std::int64_t vocab, ProcessGroup& group,
                           const CrossEntropyOptions& options = {});

namespace detail {
/// vocab_cross_entropy with at most `chunk_rows` rows at a time; 0: by the sizes.
Tensor vocab_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                           std::int64_t vocab, ProcessGroup& group,
                           const CrossEntropyOptions& options, std::int64_t chunk_rows);
}  // namespace detail

}  // namespace weft::distributed
