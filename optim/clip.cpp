#include "weft/optim/clip.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/core/allocator.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/optimizer.h"

namespace weft::optim {
namespace {

// Every gradient, contiguous, as the kernel wants it. Kept per thread: a step touches no heap.
struct Gradients {
  std::vector<GradSlot> slots;
  Tensor first;
  std::int64_t count = 0, chunks = 0;
};

Gradients& collect(const NamedTensors& parameters) {
  static thread_local Gradients all;
  all.slots.clear();
  all.first = {};
  all.count = all.chunks = 0;
  for (const NamedTensor& p : parameters) {
    const Tensor g = gradient_of(p.tensor);
    if (!g) continue;
    check(is_compute(g.dtype()), "grad_norm: the gradient of {} must be f32, f64 or bf16, got {}",
          p.name, g.dtype());
    check(g.is_contiguous(), "grad_norm: the gradient of {} must be contiguous, got strides {}",
          p.name, g.strides());
    if (!all.first) all.first = g;
    check(g.device() == all.first.device(),
          "grad_norm: all gradients must be on device {}, but that of {} is on {}",
          all.first.device(), p.name, g.device());
    const GradSlot slot{g.is_meta() ? nullptr : g.raw(), g.numel(), g.dtype()};
    all.chunks += optimizer_chunks(&slot, 1, g.device().is_gpu());
    ++all.count;
    all.slots.push_back(slot);
  }
  return all;
}

}  // namespace

Tensor gradient_of(const Tensor& parameter) {
  const Tensor main = parameter.main_grad();
  return main ? main : parameter.grad();
}

GradClip measure_clip(const NamedTensors& parameters, double max_norm) {
  check(max_norm >= 0, "clip: max_norm must be at least 0, got {}", max_norm);
  const CategoryScope category(Category::optimizer);
  Gradients& g = collect(parameters);
  if (!g.first) return {};
  const Device device = std::exchange(g.first, {}).device();
  const std::int64_t table = slot_table_bytes<GradSlot>(g.count, device.is_gpu());
  const Tensor partials = Tensor::empty({g.chunks + table / 8}, DType::f64, device);
  const Tensor sums = Tensor::empty({g.count + 1}, DType::f64, device);
  dispatch<cpu::grad_squares, cuda::grad_squares>(partials, g.slots.data(), g.count, sums);
  GradClip clip{Tensor::empty({}, DType::f64, device), Tensor::empty({}, DType::f64, device)};
  const double limit = max_norm > 0 ? max_norm : std::numeric_limits<double>::infinity();
  dispatch<cpu::clip_scale, cuda::clip_scale>(sums, limit, clip.scale);
  clip.norm = sums.select(0, g.count).sqrt();
  return clip;
}

void require_finite(const GradClip& clip, const Tensor& number) {
  check(number.numel() == 1, "require_finite: number must have 1 element, got shape {}",
        number.shape());
  if (!clip.scale) return;
  // 0 times what is not finite is NaN.
  clip.scale.add_(number.detach().to(DType::f64).view({}), 0.0);
}

Tensor clip_grad_norm(const NamedTensors& parameters, double max_norm) {
  const GradClip clip = measure_clip(parameters, max_norm);
  if (!clip.scale || clip.scale.is_meta()) return clip.norm;
  const double scale = clip.scale.item();
  if (scale < 1)  // false for NaN as well
    for (const NamedTensor& p : parameters)
      if (const Tensor g = gradient_of(p.tensor)) g.mul_(scale);
  return clip.norm;
}

void clip_grad_value(const NamedTensors& parameters, double limit) {
  check(limit > 0, "clip: the limit on gradient values must be above 0, got {}", limit);
  for (const NamedTensor& p : parameters)
    if (const Tensor g = gradient_of(p.tensor)) g.copy_(g.clamp(-limit, limit));
}

}  // namespace weft::optim
