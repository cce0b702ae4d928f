// Adam with e4m3 states or stochastic rounding. Compiled with -fmad=false, like optimizer.cu.
#include "weft/cuda/adam.h"

namespace weft::cuda {
namespace {

constexpr int kBlockThreads = kScaleBlock / 4;  // adjacent threads that share a block of e4m3
static_assert(kOptimizerGpuChunk % kScaleBlock == 0 && kWarp % kBlockThreads == 0);

// A state as it is written: where it is, and how it is rounded.
struct NewState {
  void* data;
  DType dtype;
  void* scale;
  float f16_scale;
  E4m3Rounding how;
};

// All threads of a warp must call it. random: 16 bits in the lower half of each word.
__device__ inline void write_state(const NewState& s, const Four& f, const Pack<float, 4>& x,
                                   const Pack<std::uint32_t, 4>& random) {
  if (s.dtype == DType::bf16 && s.how.stochastic) return write_rounded(s.data, f, x, random);
  if (s.dtype != DType::e4m3)
    return write_four(s.data, s.dtype, f, x, s.f16_scale, s.how.keeps_above_zero);
  float largest = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j)  // ignores NaN, as on the CPU
    if (j < f.valid && fabsf(x[j]) > largest) largest = fabsf(x[j]);
  const std::uint8_t exponent = block_exponent(warp_reduce<kBlockThreads>(largest, Max{}));
  const float inverse = inverse_block_scale(exponent);
  Pack<e4m3, 4> codes;
#pragma unroll
  for (int j = 0; j < 4; ++j) codes[j] = round_e4m3(x[j] * inverse, s.how, random[j] & 0xffffu);
  write_as<e4m3>(s.data, f, codes);
  __syncwarp();  // the threads of the block have read its old exponent
  if (threadIdx.x % kBlockThreads == 0 && f.valid > 0)
    static_cast<std::uint8_t*>(s.scale)[f.at / kScaleBlock] = exponent;
}

__global__ void __launch_bounds__(kSlotThreads)
    optimizer_narrow_adam_kernel(AdamTable slots, std::int64_t count, AdamStep given,
                                 const float* scales) {
  const AdamStep step = with_device_numbers(given);
  const double scale = scale_of(step.grad_scale);
  const auto& placed = slot_of(slots, count, blockIdx.x);
  const AdamSlot& s = placed.slot;
  if (untouched(s, scale) || s.param_dtype == DType::f64) return;
  const bool f16 = s.m_dtype == DType::f16 || s.v_dtype == DType::f16;
  const NewState m{s.m,
                   s.m_dtype,
                   s.m_scale,
                   f16 ? scales[2 * placed.first_chunk] : 1.0f,
                   {s.stochastic, false}};
  const NewState v{s.v,
                   s.v_dtype,
                   s.v_scale,
                   f16 ? scales[2 * placed.first_chunk + 1] : 1.0f,
                   {s.stochastic, true}};
  const bool split = s.remainder != nullptr;
  const Span span(placed, blockIdx.x);
  // Every thread stays in the loop: threads share blocks.
  for (std::int64_t from = span.begin; from < span.end; from += 4 * kSlotThreads) {
    const std::int64_t i = from + 4 * threadIdx.x, end = i < span.end ? span.end : i;
    const Four f = Four::of(i, end, placed.packs);
    Moments<float> r{read_param<float>(s, f, split), read_state(s.m, s.m_dtype, s.m_scale, f),
                     read_state(s.v, s.v_dtype, s.v_scale, f)};
    adam(r, s, step, f, static_cast<float>(scale));
    Pack<std::uint32_t, 4> random{}, upper{};
    if (s.stochastic) random = random_words(s, step.seed, step.now.step, Drawn::states, f);
#pragma unroll
    for (int j = 0; j < 4; ++j) upper[j] = random[j] >> 16;
    write_state(m, f, r.m, random);
    write_state(v, f, r.v, upper);
    if (rounds_param(s))
      write_rounded_param(s, f, r.p, step.seed, step.now.step);
    else
      write_param(s, f, r.p, split);
  }
}

}  // namespace

void launch_adam_narrow(const SlotTable<AdamSlot>& table, const AdamStep& step,
                        const float* scales) {
  launch(optimizer_narrow_adam_kernel, grid_of(table.chunks), kSlotThreads, 0, table.slots,
         table.count, step, scales);
}

}  // namespace weft::cuda
