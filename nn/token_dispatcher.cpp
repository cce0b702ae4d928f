#include "weft/nn/token_dispatcher.h"

namespace weft::nn {
namespace {

// Half of it is added to each expert on average: at most a 32nd of the rows.
std::int64_t alignment_for(std::int64_t rows_per_expert) {
  std::int64_t a = 1;
  while (a < 128 && 32 * a <= rows_per_expert) a *= 2;
  return a;
}

}  // namespace

Dispatch LocalDispatcher::dispatch_preprocess(const Tensor& x, const Routing& routing,
                                              std::int64_t capacity) const {
  Dispatch d;
  std::int64_t alignment = alignment_;
  if (alignment == 0)
    alignment = x.device().is_gpu() && capacity == 0
                    ? alignment_for(routing.experts.numel() / experts_)
                    : 1;
  const std::int64_t rows = (capacity + alignment - 1) / alignment * alignment;
  d.rows = sort_by_expert(routing.experts, experts_, {.alignment = alignment, .capacity = rows});
  d.tokens = permute_tokens(x, d.rows);
  d.probs = permute_probs(routing.probs, d.rows);
  return d;
}

void LocalDispatcher::dispatch_postprocess(Dispatch& d) const { d.expert_rows = d.rows.rows; }

Tensor LocalDispatcher::combine_postprocess(const Tensor& y, const Dispatch& d) const {
  return combine_tokens(y, d.rows);
}

}  // namespace weft::nn
