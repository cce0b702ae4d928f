#include "weft/nn/token_dispatcher.h"

namespace weft::nn {

Dispatch LocalDispatcher::dispatch_preprocess(const Tensor& x, const Routing& routing,
                                              std::int64_t capacity) const {
  Dispatch d;
  const std::int64_t rows = (capacity + alignment_ - 1) / alignment_ * alignment_;
  d.rows = sort_by_expert(routing.experts, experts_, {.alignment = alignment_, .capacity = rows});
  d.tokens = permute_tokens(x, d.rows);
  d.probs = permute_probs(routing.probs, d.rows);
  return d;
}

void LocalDispatcher::dispatch_postprocess(Dispatch& d) const { d.expert_rows = d.rows.rows; }

Tensor LocalDispatcher::combine_postprocess(const Tensor& y, const Dispatch& d) const {
  return combine_tokens(y, d.rows);
}

}  // namespace weft::nn
