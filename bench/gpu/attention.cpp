// Flash attention, forward and backward. A causal mask halves the counted FLOPs.
#include "weft/core/kernels/attention.h"

#include <cmath>

#include "weft/bench/gpu/gpu_bench.h"

namespace weft::bench {
namespace {

using Values = Buffers::Values;

struct Heads {
  std::int64_t batch, heads, tokens, dim;
  std::int64_t kv_heads = 0;  ///< 0: equal to heads
};

void measure(GpuBench& bench, const Heads& h, bool causal, DType dtype) {
  const std::int64_t kv_heads = h.kv_heads ? h.kv_heads : h.heads;
  const Shape q_shape{h.batch, h.tokens, h.heads, h.dim};
  const Shape kv_shape{h.batch, h.tokens, kv_heads, h.dim};
  const int sets = cold_sets(q_shape, dtype);
  const auto buffers = [&](const Shape& shape, Values values) {
    return Buffers(shape, dtype, sets, values);
  };
  const Buffers q = buffers(q_shape, Values::uniform), k = buffers(kv_shape, Values::uniform);
  const Buffers v = buffers(kv_shape, Values::uniform), dy = buffers(q_shape, Values::uniform);
  const Buffers y = buffers(q_shape, Values::poison), dq = buffers(q_shape, Values::poison);
  const Buffers dk = buffers(kv_shape, Values::poison), dv = buffers(kv_shape, Values::poison);
  const Buffers lse({h.batch, h.heads, h.tokens}, DType::f32, sets, Values::poison);

  const AttentionSpec spec{.batch = h.batch,
                           .heads = h.heads,
                           .kv_heads = kv_heads,
                           .queries = h.tokens,
                           .keys = h.tokens,
                           .head_dim = h.dim,
                           .value_dim = h.dim,
                           .causal = causal,
                           .scale = 1 / std::sqrt(static_cast<double>(h.dim))};
  const Tensor scratch = Tensor::empty({attention_scratch(spec)}, DType::f32, kGpu);
  const Tensor none;
  const double pairs = static_cast<double>(h.tokens) * static_cast<double>(h.tokens);
  const double product = 2 * pairs * static_cast<double>(h.batch * h.heads * h.dim);
  const double counted = causal ? product / 2 : product;
  const auto name = [&](std::string op) {
    if (causal) op += " causal";
    if (h.kv_heads) op += message(" kv_heads {}", h.kv_heads);
    return row_name(op, dtype, {h.batch, h.heads, h.tokens, h.dim});
  };

  const auto in = [&](int i) {
    return AttentionIn{.q = q[i], .k = k[i], .v = v[i], .cu_seqlens = none};
  };
  const auto out = [&](int i) { return AttentionOut{.y = y[i], .lse = lse[i]}; };
  const auto forward = [&](int i) { cuda::attention_fwd(in(i), spec, out(i)); };
  bench.arithmetic({name("attention forward"), 2 * counted, {y}, forward});
  for (int i = 0; i < sets; ++i) forward(i);
  bench.arithmetic({name("attention backward"), 5 * counted, {dq, dk, dv}, [&](int i) {
                      cuda::attention_bwd(
                          in(i), spec, out(i), dy[i],
                          {.dq = dq[i], .dk = dk[i], .dv = dv[i], .scratch = scratch});
                    }});
}

}  // namespace

void attention_part(GpuBench& bench) {
  if (bench.quick()) {
    measure(bench, {1, 4, 16, 64, 2}, true, DType::bf16);
    return measure(bench, {1, 1, 8, 16}, false, DType::f32);
  }
  const Heads shapes[] = {{64, 12, 1024, 64},  {16, 12, 4096, 64}, {4, 12, 16384, 64},
                          {32, 16, 1024, 128}, {8, 16, 4096, 128}, {2, 16, 16384, 128}};
  for (const bool causal : {true, false})
    for (const Heads& h : shapes) measure(bench, h, causal, DType::bf16);
  measure(bench, {64, 12, 1024, 64, 3}, true, DType::bf16);
  measure(bench, {32, 16, 1024, 128, 4}, true, DType::bf16);
  measure(bench, {64, 12, 1024, 64}, true, DType::f32);
}

}  // namespace weft::bench
