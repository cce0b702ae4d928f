#include "weft/distributed/vocab.h"

#include <algorithm>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/linear_cross_entropy.h"
#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/indexing.h"

namespace weft::distributed {
namespace {

VocabRange range_of(const char* op, const Tensor& weight, std::int64_t vocab,
                    const ProcessGroup& group) {
  weft::detail::check_tensor(op, "weight", weight);
  const VocabRange range = vocab_range(vocab, group.rank(), group.size());
  check(weight.ndim() == 2 && weight.dim(0) == range.count,
        "{}: weight must have {} rows on rank {} of {} (vocabulary {}), got {}", op, range.count,
        group.rank(), group.size(), vocab, weight.shape());
  return range;
}

// An id outside the vocabulary would silently become 0 on every rank.
void check_ids(const Tensor& ids, std::int64_t vocab) {
  weft::detail::check_tensor("embedding", "ids", ids);
  check(ids.dtype() == DType::i32 || ids.dtype() == DType::i64,
        "embedding: ids must have dtype i32 or i64, got {}", ids.dtype());
  const Device device = ids.device();
  const Tensor bad = device.is_gpu() ? Tensor() : Tensor::empty({2}, DType::i64, device);
  dispatch<cpu::find_bad_index, cuda::find_bad_index>(contiguous(ids), "embedding", "ids", vocab,
                                                      bad);
  if (!bad.defined() || bad.is_meta()) return;
  const std::int64_t* result = bad.data<std::int64_t>();
  check(result[0] == 0, "embedding: ids must be in [0, {}), got {}", vocab, result[1]);
}

}  // namespace

VocabRange vocab_range(std::int64_t vocab, int rank, int ranks) {
  const std::int64_t most = (vocab + ranks - 1) / ranks;
  const std::int64_t first = std::min(rank * most, vocab);
  return {first, std::min(most, vocab - first)};
}

Tensor vocab_embedding(const Tensor& weight, const Tensor& ids, std::int64_t vocab,
                       const ProcessGroup& group) {
  const VocabRange range = range_of("vocab_embedding", weight, vocab, group);
  check_ids(ids, vocab);
  if (group.size() == 1) return embedding(weight, ids);
  Shape shape = ids.shape();
  shape.push_back(weight.dim(1));
  if (range.count == 0) {
    Tensor nothing = Tensor::zeros(shape, weight.dtype(), weight.device());
    // Record an empty weight too: the tape must not depend on which ranks have rows.
    if (recording(weight))
      Tape::record("vocab_embedding", {&weight}, {&nothing}, [rows = weight.shape()](Backward& b) {
        b.add(0, Tensor::zeros(rows, b.dy().dtype(), b.dy().device()));
      });
    return nothing;
  }
  const Tensor own = sub(ids, static_cast<double>(range.first));
  const Tensor row = maximum(minimum(own, static_cast<double>(range.count - 1)), 0);
  return where(eq(row, own).unsqueeze(-1), embedding(weight, row),
               Tensor::zeros({}, weight.dtype(), weight.device()));
}

Tensor vocab_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                           std::int64_t vocab, ProcessGroup& group,
                           const CrossEntropyOptions& options) {
  return detail::vocab_cross_entropy(x, weight, targets, vocab, group, options, 0);
}

Tensor detail::vocab_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                   std::int64_t vocab, ProcessGroup& group,
                                   const CrossEntropyOptions& options, std::int64_t chunk_rows) {
  const VocabRange range = range_of("vocab_cross_entropy", weight, vocab, group);
  weft::detail::ClassPart part;
  part.range = {range.first, vocab};
  part.most = vocab_range(vocab, 0, group.size()).count;
  part.gather = [&group](const Tensor& own) {
    const std::int64_t n = own.dim(0);
    Tensor all = Tensor::empty({group.size() * n, 4}, own.dtype(), own.device());
    if (group.size() == 1) return own.view({1, n, 4});
    group.at_once().all_gather(all, own).wait();
    return all.view({group.size(), n, 4});
  };
  return weft::detail::linear_cross_entropy(x, weight, targets, options, part, chunk_rows);
}

}  // namespace weft::distributed
