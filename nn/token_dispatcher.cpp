#include "weft/nn/token_dispatcher.h"

#include <algorithm>

#include "weft/autograd/fp8.h"

namespace weft::nn {
namespace {

// Padding adds half of the alignment per expert on average: at most 1/32 of the rows.
std::int64_t alignment_for(std::int64_t rows_per_expert) {
  std::int64_t a = 1;
  while (a < 128 && 32 * a <= rows_per_expert) a *= 2;
  return a;
}

}  // namespace

std::int64_t row_alignment(std::int64_t alignment, Device device, std::int64_t capacity,
                           std::int64_t rows_per_expert) {
  if (alignment > 0) return alignment;
  const std::int64_t best = device.is_gpu() && capacity == 0 ? alignment_for(rows_per_expert) : 1;
  return fp8::Autocast::current() ? std::max(best, fp8::kMultiple) : best;
}

Dispatch LocalDispatcher::dispatch_preprocess(const Tensor& x, const Routing& routing,
                                              const FixedRows& fixed) const {
  Dispatch d;
  const std::int64_t capacity = fixed.of_rank;
  const std::int64_t alignment =
      row_alignment(alignment_, x.device(), capacity, routing.experts.numel() / experts_);
  const std::int64_t rows = (capacity + alignment - 1) / alignment * alignment;
  d.rows = sort_by_expert(routing.experts, experts_, {.alignment = alignment, .capacity = rows});
  d.tokens = permute_tokens(form_ == TokenForm::fp8 ? fp8::rounded_rows(x) : x, d.rows);
  d.probs = permute_probs(routing.probs, d.rows);
  return d;
}

void LocalDispatcher::dispatch_postprocess(Dispatch& d) const { d.expert_rows = d.rows.rows; }

Tensor LocalDispatcher::combine_postprocess(const Tensor& y, const Dispatch& d) const {
  return combine_tokens(y, d.rows);
}

}  // namespace weft::nn
