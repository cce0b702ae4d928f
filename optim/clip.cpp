#include "weft/optim/clip.h"

#include <limits>

#include "weft/core/allocator.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/optimizer.h"

namespace weft::optim {
namespace {

// The kernel's arguments. Reused per thread, so that a step allocates nothing.
std::vector<GradSlot>& empty_slots() {
  static thread_local std::vector<GradSlot> slots;
  slots.clear();
  return slots;
}

GradSlot slot_of(const Tensor& t) {
  return {t.is_meta() ? nullptr : t.raw(), t.numel(), t.dtype()};
}

Tensor squares_of(const std::vector<GradSlot>& slots, Device device) {
  const CategoryScope category(Category::optimizer);
  const auto count = static_cast<std::int64_t>(slots.size());
  const std::int64_t chunks = optimizer_chunks(slots.data(), count, device.is_gpu());
  const std::int64_t table = slot_table_bytes<GradSlot>(count, device.is_gpu());
  const Tensor partials = Tensor::empty({chunks + table / 8}, DType::f64, device);
  Tensor sums = Tensor::empty({count + 1}, DType::f64, device);
  count_slots(slots.data(), count);
  dispatch<cpu::grad_squares, cuda::grad_squares>(partials, slots.data(), count, sums);
  return sums;
}

}  // namespace

Tensor gradient_of(const Tensor& parameter) {
  const Tensor main = parameter.main_grad();
  if (!main.defined()) return parameter.grad();
  return parameter.main_grad_filled() ? main : Tensor();
}

Tensor sums_of_squares(const std::vector<Tensor>& tensors) {
  if (tensors.empty()) return {};
  std::vector<GradSlot>& slots = empty_slots();
  for (const Tensor& t : tensors) {
    check(is_compute(t.dtype()) && t.is_contiguous(),
          "sums_of_squares: tensors must be f32, f64, bf16 or f16 and contiguous, got {} with "
          "strides {}",
          name(t.dtype()), t.strides());
    slots.push_back(slot_of(t));
  }
  return squares_of(slots, tensors[0].device());
}

GradClip clip_from(const Tensor& squares, double max_norm) {
  check(max_norm >= 0, "clip: max_norm must be at least 0, got {}", max_norm);
  const CategoryScope category(Category::optimizer);
  const Device device = squares.device();
  GradClip clip{{}, Tensor::empty({}, DType::f64, device)};
  const double limit = max_norm > 0 ? max_norm : std::numeric_limits<double>::infinity();
  dispatch<cpu::clip_scale, cuda::clip_scale>(squares, limit, clip.scale);
  clip.norm = squares.select(0, squares.numel() - 1).sqrt();
  return clip;
}

GradClip measure_clip(const NamedTensors& parameters, double max_norm) {
  check(max_norm >= 0, "clip: max_norm must be at least 0, got {}", max_norm);
  std::vector<GradSlot>& slots = empty_slots();
  Device device = kCpu;
  for (const NamedTensor& p : parameters) {
    const Tensor g = gradient_of(p.tensor);
    if (!g.defined()) continue;
    check(is_compute(g.dtype()),
          "grad_norm: the gradient of {} must be f32, f64, bf16 or f16, got {}", p.name, g.dtype());
    check(g.is_contiguous(), "grad_norm: the gradient of {} must be contiguous, got strides {}",
          p.name, g.strides());
    if (slots.empty()) device = g.device();
    check(g.device() == device,
          "grad_norm: all gradients must be on device {}, but that of {} is on {}", device, p.name,
          g.device());
    slots.push_back(slot_of(g));
  }
  return slots.empty() ? GradClip{} : clip_from(squares_of(slots, device), max_norm);
}

void require_finite(const GradClip& clip, const Tensor& number) {
  check(number.numel() == 1, "require_finite: number must have 1 element, got shape {}",
        number.shape());
  if (!clip.scale.defined()) return;
  // 0 times a non-finite number is NaN.
  clip.scale.add_(number.detach().to(DType::f64).view({}), 0.0);
}

Tensor clip_grad_norm(const NamedTensors& parameters, double max_norm) {
  const GradClip clip = measure_clip(parameters, max_norm);
  if (!clip.scale.defined() || clip.scale.is_meta()) return clip.norm;
  const double scale = clip.scale.item();
  if (scale < 1)  // also false for NaN
    for (const NamedTensor& p : parameters)
      if (const Tensor g = gradient_of(p.tensor); g.defined()) g.mul_(scale);
  return clip.norm;
}

void clip_grad_value(const NamedTensors& parameters, double limit) {
  check(limit > 0, "clip: the limit on gradient values must be above 0, got {}", limit);
  for (const NamedTensor& p : parameters)
    if (const Tensor g = gradient_of(p.tensor); g.defined()) g.copy_(g.clamp(-limit, limit));
}

}  // namespace weft::optim
