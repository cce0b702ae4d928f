#include "weft/nn/token_embedding.h"

#include <algorithm>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/nn/each_row.h"
#include "weft/nn/kv_cache.h"

namespace weft::nn {
namespace {

// On the CPU. On a GPU the host would wait for the positions, and tables check them there.
void check_positions(const Packing& packing, std::int64_t seq) {
  const Tensor& at = packing.positions;
  if (!at.device().is_cpu() || at.dtype() != DType::i32 || !at.is_contiguous()) return;
  const std::span<const std::int32_t> all(at.data<std::int32_t>(),
                                          static_cast<std::size_t>(at.numel()));
  for (const std::int32_t p : all)
    check(p >= 0 && p < seq, "gpt: positions in a packed row must be in [0, seq {}), got {}", seq,
          p);
}

}  // namespace

Tensor embed_tokens(const Embedding& embed, const Embedding* positions, const Tensor& ids,
                    const TokenContext& context, std::int64_t seq, std::int64_t ahead,
                    const std::function<void(const Module&)>& before_use) {
  check(ids.ndim() == 2, "gpt: ids must have shape (batch, tokens), got {}", ids.shape());
  const Packing& packing = context.packing;
  const std::int64_t tokens = ids.dim(1), first = context.cache ? context.cache->length() : 0;
  if (packing) {
    packing.check_row(ids);
    check_positions(packing, seq);
  } else if (!context.rows.empty()) {
    return each_row(ids, context, [&](const Tensor& row, const TokenContext& own) {
      return embed_tokens(embed, positions, row, own, seq, ahead, before_use);
    });
  } else {
    check(first + tokens <= seq, "gpt: at most seq {} tokens, got {}", seq, first + tokens);
  }
  if (before_use) before_use(embed);
  const Tensor x = embed(ids);
  if (!positions) return x;
  if (before_use) before_use(*positions);
  if (packing) {
    const Tensor& at = packing.positions;
    // Past the end of a sequence nothing is predicted, so any position will do.
    return add(x, (*positions)(ahead ? minimum(add(at, static_cast<double>(ahead)),
                                               static_cast<double>(seq - 1))
                                     : at));
  }
  const std::int64_t from = std::min(first + ahead, seq), rows = std::min(tokens, seq - from);
  const Tensor at = positions->weight.narrow(0, from, rows);
  return add(x, rows < tokens ? pad(at, 0, 0, tokens - rows) : at);
}

}  // namespace weft::nn
