#pragma once
// Small models whose memory is planned, and the sizes of their parameters.
#include <cstdint>

#include "weft/core/allocator.h"
#include "weft/examples/common/gpt_options.h"
#include "weft/examples/common/gpt_task.h"

namespace weft::examples::memory_plan_test {

inline constexpr int kParameter = static_cast<int>(Category::parameter),
                     kOptimizer = static_cast<int>(Category::optimizer);

inline GptOptions small() {
  GptOptions o;
  o.model.layers = 2;
  o.model.heads = 2;
  o.model.dim = 16;
  o.model.seq = 16;
  o.model.vocab = 41;
  o.batch = 4;
  o.machine.threads = 1;
  return o;
}

// With a capacity each expert gets the same number of rows for any data.
inline GptOptions experts() {
  GptOptions o = small();
  o.model.arch = nn::Arch::llama;
  o.model.moe.experts = 4;
  o.model.moe.ffn = 8;
  o.model.moe.shared_ffn = 8;
  o.model.moe.router.route.score = RouterScore::sigmoid;
  o.model.moe.router.capacity_factor = 1.25;
  o.balance.aux = Aux::bias;
  return o;
}

// A tensor of this many bytes for each value of each parameter, in size classes.
inline std::int64_t tensors_of(const GptOptions& o, std::int64_t width) {
  const GptTask gpt(o);
  std::int64_t bytes = 0;
  for (const Tensor& p : gpt.model.parameters()) bytes += size_class_bytes(width * p.numel());
  return bytes;
}

}  // namespace weft::examples::memory_plan_test
