#pragma once
// Four elements of an optimizer's step: Adam's update, and numbers in few bits.
#include "weft/core/kernels/optimizer.h"
#include "weft/cuda/reduce.h"
#include "weft/cuda/slots.h"

namespace weft::cuda {

using AdamTable = const PlacedSlot<AdamSlot>*;

__device__ inline double scale_of(const double* grad_scale) { return grad_scale ? *grad_scale : 1; }
__device__ inline bool is_finite(double x) { return x - x == 0; }

/// Whether this step skips the slot.
__device__ inline bool untouched(const ParamSlot& s, double grad_scale) {
  return !is_finite(grad_scale) || (s.reached && *s.reached == 0);
}

/// The step with its numbers read from device memory, if they are stored there.
template <class Step>
__device__ inline Step with_device_numbers(Step step) {
  if (step.on_device) step.now = *step.on_device;
  return step;
}

template <class C>
struct Moments {
  Pack<C, 4> p, m, v;
};

template <class C>
__device__ inline Moments<C> read_moments(const AdamSlot& s, const Four& f, C m_scale, C v_scale,
                                          bool split) {
  return {read_param<C>(s, f, split), read_four<C>(s.m, s.m_dtype, f, m_scale),
          read_four<C>(s.v, s.v_dtype, f, v_scale)};
}

/// Updates four elements.
template <class C>
__device__ inline void adam(Moments<C>& r, const AdamSlot& s, const AdamStep& step, const Four& f,
                            C scale) {
  const auto grad = read_four<C>(s.grad, s.grad_dtype, f);
  const C beta1 = static_cast<C>(step.beta1), beta2 = static_cast<C>(step.beta2);
  const C lr = static_cast<C>(step.now.lr * s.lr_scale), decay = static_cast<C>(s.weight_decay);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    C g = grad[j] * scale;
    if (!step.decoupled) g += decay * r.p[j];
    r.m[j] = beta1 * r.m[j] + (C(1) - beta1) * g;
    r.v[j] = beta2 * r.v[j] + (C(1) - beta2) * g * g;
    C u = (r.m[j] / static_cast<C>(step.now.bias_correction1)) /
          (sqrt_of(r.v[j] / static_cast<C>(step.now.bias_correction2)) + static_cast<C>(step.eps));
    if (step.decoupled) u += decay * r.p[j];
    r.p[j] -= lr * u;
  }
}

/// The scale of an f16 state.
__device__ inline float stored_scale(DType dtype, const void* scale) {
  return dtype == DType::f16 ? *static_cast<const float*>(scale) : 1.0f;
}

/// A state of any dtype.
__device__ inline Pack<float, 4> read_state(const void* x, DType dtype, const void* scale,
                                            const Four& f) {
  if (dtype != DType::e4m3) return read_four<float>(x, dtype, f, stored_scale(dtype, scale));
  auto out = read_as<float, e4m3>(x, f);
  const auto exponents = static_cast<const std::uint8_t*>(scale);
  const float by = f.valid > 0 ? block_scale(exponents[f.at / kScaleBlock]) : 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) out[j] *= by;
  return out;
}

/// The random bits of four elements.
__device__ inline Pack<std::uint32_t, 4> random_words(const ParamSlot& s, std::uint64_t seed,
                                                      std::uint64_t step, Drawn what,
                                                      const Four& f) {
  const RandomKey key{seed, rounding_stream(s.stream, step, what)};
  Pack<std::uint32_t, 4> out;
  std::array<std::uint32_t, 4> block{};
  std::uint64_t drawn = ~std::uint64_t{0};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const auto whole = static_cast<std::uint64_t>(whole_index(s.place, s.first + f.at + j));
    if (whole / 4 != drawn) block = random_block(key, drawn = whole / 4);
    const auto word = static_cast<unsigned>(whole % 4);
    out[j] = word == 0 ? block[0] : word == 1 ? block[1] : word == 2 ? block[2] : block[3];
  }
  return out;
}

/// random: 16 bits in the lower half of each word.
__device__ inline void write_rounded(void* base, const Four& f, const Pack<float, 4>& x,
                                     const Pack<std::uint32_t, 4>& random) {
  Pack<bf16, 4> rounded;
#pragma unroll
  for (int j = 0; j < 4; ++j) rounded[j] = stochastic_bf16(x[j], random[j] & 0xffffu);
  write_as<bf16>(base, f, rounded);
}

/// Whether the parameter is bf16, is its own master weight and is rounded stochastically.
__device__ inline bool rounds_param(const ParamSlot& s) {
  return s.stochastic && s.param_dtype == DType::bf16 && !s.remainder;
}
__device__ inline void write_rounded_param(const ParamSlot& s, const Four& f,
                                           const Pack<float, 4>& p, std::uint64_t seed,
                                           std::uint64_t step) {
  write_rounded(s.param, f, p, random_words(s, seed, step, Drawn::weight, f));
}

/// Updates all slots but f64 ones, with e4m3 states or stochastic rounding. scales: as in
/// optimizer.cu.
void launch_adam_narrow(const SlotTable<AdamSlot>& table, const AdamStep& step,
                        const float* scales);

}  // namespace weft::cuda
