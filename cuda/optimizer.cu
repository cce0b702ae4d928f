// Adam and SGD over all parameters at once. This file is compiled with -fmad=false: every product
// and sum is rounded separately, as on the CPU, so that both give the same bits.
#include <algorithm>

#include "weft/cuda/adam.h"

namespace weft::cuda {
namespace {

__host__ __device__ inline bool has_f16(const AdamSlot& s) {
  return s.m_dtype == DType::f16 || s.v_dtype == DType::f16;
}

// Blocks of an update that a multiprocessor must hold: for more of them, ptxas spills registers.
constexpr int kUpdateBlocks = 3;

// Updates the slots that compute in C, either with or without remainders. scales[2 * first_chunk]
// and the next entry: the new scales of f16 states.
template <class C, bool Split>
__global__ void __launch_bounds__(kSlotThreads, kUpdateBlocks)
    optimizer_adam_kernel(AdamTable slots, std::int64_t count, AdamStep given,
                          const float* scales) {
  const AdamStep step = with_device_numbers(given);
  const double scale = scale_of(step.grad_scale);
  // A copy: the compiler would read a reference again after every store.
  const PlacedSlot<AdamSlot> placed = slot_of(slots, count, blockIdx.x);
  const AdamSlot& s = placed.slot;
  if (untouched(s, scale)) return;
  if ((s.param_dtype == DType::f64) != std::is_same_v<C, double>) return;
  if ((s.remainder != nullptr) != Split) return;
  C m_old = 1, v_old = 1, m_new = 1, v_new = 1;
  if (has_f16(s)) {
    m_old = stored_scale(s.m_dtype, s.m_scale);
    v_old = stored_scale(s.v_dtype, s.v_scale);
    m_new = scales[2 * placed.first_chunk];
    v_new = scales[2 * placed.first_chunk + 1];
  }
  each_four(placed, blockIdx.x, [&](const Four& f) {
    auto r = read_moments<C>(s, f, m_old, v_old, Split);
    adam(r, s, step, f, static_cast<C>(scale));
    write_param(s, f, r.p, Split);
    write_four(s.m, s.m_dtype, f, r.m, m_new);
    write_four(s.v, s.v_dtype, f, r.v, v_new, true);
  });
}

// First pass for f16 states: the largest new moments of each chunk.
__global__ void __launch_bounds__(kSlotThreads)
    optimizer_absmax_kernel(AdamTable slots, std::int64_t count, AdamStep given, float* absmax) {
  WEFT_SHARED(shared, float[kSlotThreads / kWarp]);
  const AdamStep step = with_device_numbers(given);
  const double scale = scale_of(step.grad_scale);
  const auto& placed = slot_of(slots, count, blockIdx.x);
  const AdamSlot& s = placed.slot;
  if (!has_f16(s) || untouched(s, scale)) return;
  float m = 0, v = 0;
  each_four(placed, blockIdx.x, [&](const Four& f) {
    Moments<float> r{read_param<float>(s, f, s.remainder != nullptr),
                     read_state(s.m, s.m_dtype, s.m_scale, f),
                     read_state(s.v, s.v_dtype, s.v_scale, f)};
    adam(r, s, step, f, static_cast<float>(scale));
    for (int j = 0; j < f.valid; ++j) {  // ignores NaN, as on the CPU
      if (fabsf(r.m[j]) > m) m = fabsf(r.m[j]);
      if (fabsf(r.v[j]) > v) v = fabsf(r.v[j]);
    }
  });
  m = block_reduce<kSlotThreads>(m, shared, 0.0f, Max{});
  v = block_reduce<kSlotThreads>(v, shared, 0.0f, Max{});
  if (threadIdx.x == 0) {
    absmax[2 * std::int64_t{blockIdx.x}] = m;
    absmax[2 * std::int64_t{blockIdx.x} + 1] = v;
  }
}

constexpr float kLargestF16 = 32752;  // half of the f16 range

// One block per slot: its scales replace the maxima of its first chunk.
__global__ void __launch_bounds__(kSlotThreads)
    optimizer_scales_kernel(AdamTable slots, AdamStep step, float* absmax) {
  WEFT_SHARED(shared, float[kSlotThreads / kWarp]);
  const auto& placed = slots[blockIdx.x];
  const AdamSlot& s = placed.slot;
  if (!has_f16(s) || s.n == 0 || untouched(s, scale_of(step.grad_scale))) return;
  float* const first = absmax + 2 * placed.first_chunk;
  const std::int64_t chunks = (s.n + kOptimizerGpuChunk - 1) / kOptimizerGpuChunk;
  float m = 0, v = 0;
  for (std::int64_t c = threadIdx.x; c < chunks; c += kSlotThreads) {
    m = Max{}(m, first[2 * c]);
    v = Max{}(v, first[2 * c + 1]);
  }
  m = block_reduce<kSlotThreads>(m, shared, 0.0f, Max{});
  v = block_reduce<kSlotThreads>(v, shared, 0.0f, Max{});
  if (threadIdx.x == 0) {
    first[0] = m / kLargestF16;
    first[1] = v / kLargestF16;
  }
}

// Last pass, one thread per slot: stores the scales that the states now use.
__global__ void __launch_bounds__(kSlotThreads)
    optimizer_store_scales_kernel(AdamTable slots, std::int64_t count, AdamStep step,
                                  const float* scales) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kSlotThreads + threadIdx.x;
  if (i >= count) return;
  const AdamSlot& s = slots[i].slot;
  if (!has_f16(s) || s.n == 0 || untouched(s, scale_of(step.grad_scale))) return;
  if (s.m_dtype == DType::f16) *static_cast<float*>(s.m_scale) = scales[2 * slots[i].first_chunk];
  if (s.v_dtype == DType::f16)
    *static_cast<float*>(s.v_scale) = scales[2 * slots[i].first_chunk + 1];
}

template <class C>
__global__ void __launch_bounds__(kSlotThreads, kUpdateBlocks)
    optimizer_sgd_kernel(const PlacedSlot<SgdSlot>* slots, std::int64_t count, SgdStep given) {
  const SgdStep step = with_device_numbers(given);
  const double grad_scale = scale_of(step.grad_scale);
  const auto& placed = slot_of(slots, count, blockIdx.x);
  const SgdSlot& s = placed.slot;
  if (untouched(s, grad_scale)) return;
  if ((s.param_dtype == DType::f64) != std::is_same_v<C, double>) return;
  constexpr DType kReal = dtype_of<C>();
  const C scale = static_cast<C>(grad_scale), lr = static_cast<C>(step.now.lr * s.lr_scale);
  const C decay = static_cast<C>(s.weight_decay), momentum = static_cast<C>(step.momentum);
  each_four(placed, blockIdx.x, [&](const Four& f) {
    auto p = read_param<C>(s, f, s.remainder != nullptr), g = read_four<C>(s.grad, s.grad_dtype, f);
#pragma unroll
    for (int j = 0; j < 4; ++j) g[j] = g[j] * scale + decay * p[j];
    if (s.momentum) {
      auto v = read_four<C>(s.momentum, kReal, f);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        v[j] = momentum * v[j] + g[j];
        g[j] = step.nesterov ? g[j] + momentum * v[j] : v[j];
      }
      write_four(s.momentum, kReal, f, v);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) p[j] -= lr * g[j];
    if constexpr (std::is_same_v<C, float>)
      if (rounds_param(s)) return write_rounded_param(s, f, p, step.seed, step.now.step);
    write_param(s, f, p, s.remainder != nullptr);
  });
}

bool params_four_at_once(const ParamSlot& s) {
  return four_at_once(s.param, s.param_dtype) && four_at_once(s.grad, s.grad_dtype) &&
         four_at_once(s.half_copy, s.copy_dtype) && four_at_once(s.remainder, DType::bf16);
}

bool is_wide(const ParamSlot& s) { return s.param_dtype == DType::f64; }
bool is_split(const ParamSlot& s) { return s.remainder != nullptr; }
bool is_narrow(const AdamSlot& s) {
  return s.stochastic || s.m_dtype == DType::e4m3 || s.v_dtype == DType::e4m3;
}

}  // namespace

void adam_step(const Tensor& scratch, const AdamSlot* slots, std::int64_t count,
               const AdamStep& step) {
  const auto table = upload(scratch, slots, count, [](const AdamSlot& s) {
    return params_four_at_once(s) && four_at_once(s.m, s.m_dtype) && four_at_once(s.v, s.v_dtype);
  });
  auto* const scales = static_cast<float*>(table.rest);
  const dim3 chunks = grid_of(table.chunks);
  const bool f16_states = std::any_of(slots, slots + count, has_f16);
  const auto launch_adam = [&](auto kernel) {
    launch(kernel, chunks, kSlotThreads, 0, table.slots, count, step, scales);
  };
  if (f16_states) {
    launch(optimizer_absmax_kernel, chunks, kSlotThreads, 0, table.slots, count, step, scales);
    launch(optimizer_scales_kernel, grid_of(count), kSlotThreads, 0, table.slots, step, scales);
  }
  if (std::any_of(slots, slots + count, is_wide)) launch_adam(optimizer_adam_kernel<double, false>);
  // All slots but the f64 ones have the same states and rounding.
  const bool narrow = std::any_of(slots, slots + count, is_narrow);
  if (narrow) launch_adam_narrow(table, step, scales);
  if (!narrow && std::any_of(slots, slots + count, is_split))
    launch_adam(optimizer_adam_kernel<float, true>);
  if (!narrow && std::any_of(slots, slots + count,
                             [](const AdamSlot& s) { return !is_wide(s) && !is_split(s); }))
    launch_adam(optimizer_adam_kernel<float, false>);
  if (f16_states)
    launch(optimizer_store_scales_kernel, grid_of(blocks_for(count, kSlotThreads)), kSlotThreads, 0,
           table.slots, count, step, scales);
}

void sgd_step(const Tensor& scratch, const SgdSlot* slots, std::int64_t count,
              const SgdStep& step) {
  const auto table = upload(scratch, slots, count, [](const SgdSlot& s) {
    return params_four_at_once(s) && four_at_once(s.momentum, is_wide(s) ? DType::f64 : DType::f32);
  });
  const dim3 chunks = grid_of(table.chunks);
  if (std::any_of(slots, slots + count, is_wide))
    launch(optimizer_sgd_kernel<double>, chunks, kSlotThreads, 0, table.slots, count, step);
  if (!std::all_of(slots, slots + count, is_wide))
    launch(optimizer_sgd_kernel<float>, chunks, kSlotThreads, 0, table.slots, count, step);
}

}  // namespace weft::cuda
