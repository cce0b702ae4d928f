#include "weft/nn/lora_weights.h"

#include <algorithm>

#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft::nn {

LoraMerger::LoraMerger(const Module& model, LoraWeights weights) : scale_(weights.options.scale()) {
  for (const LoraPlace& p : lora_places(model)) {
    const auto take = [&](const char* which, const Shape& shape) {
      const auto found = weights.tensors.find(p.adapter + which);
      if (found == weights.tensors.end()) return Tensor();
      const Tensor t = found->second;
      check(t.shape() == shape && is_compute(t.dtype()),
            "adapter: {} must be of f32, f64, bf16 or f16 with shape {}, got {} {}", found->first,
            shape, t.dtype(), t.shape());
      weights.tensors.erase(found);
      return t;
    };
    const std::int64_t rank = weights.options.rank;
    const Tensor a = take(".a", {rank, p.in}), b = take(".b", {p.rows, rank});
    check(a.defined() == b.defined(), "adapter: {} has only one of its two matrices", p.adapter);
    if (!a.defined()) continue;
    check(!p.tied, "adapter: {} cannot be merged, as the weight of {} is another layer's too",
          p.adapter, p.name);
    products_[p.weight].push_back({p.first, p.rows, p.in, a, b});
  }
  check(weights.tensors.empty(), "adapter: {} has no place in this model",
        weights.tensors.empty() ? std::string() : weights.tensors.begin()->first);
}

void LoraMerger::add_to(const std::string& parameter, std::int64_t first,
                        const Tensor& values) const {
  const auto found = products_.find(parameter);
  if (found == products_.end()) return;
  for (const Product& p : found->second) {
    const std::int64_t row = first / p.in, rows = values.numel() / p.in;
    const std::int64_t from = std::max(row, p.first), to = std::min(row + rows, p.first + p.rows);
    if (from >= to) continue;
    add_lora_product(values.detach().view({rows, p.in}).narrow(0, from - row, to - from), p.a,
                     p.b.narrow(0, from - p.first, to - from), scale_);
  }
}

}  // namespace weft::nn
