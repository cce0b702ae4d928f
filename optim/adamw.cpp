#include "weft/optim/adamw.h"

#include <cmath>

#include "weft/core/allocator.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"

namespace weft::optim {
namespace {

void check_state_dtype(const char* which, DType t) {
  check(t == DType::f32 || t == DType::bf16 || t == DType::f16 || t == DType::e4m3,
        "adamw: {} must be f32, bf16, f16 or e4m3, got {}", which, t);
}

// 1 - beta^t with beta as the kernel uses it, rounded to f32 unless parameters are f64, so that the
// correction matches the actual weights of the gradients. A function with an early return, because
// GCC 12 vectorises `wide ? beta : float(beta)` for both betas and loses the rounding.
double bias_correction(double beta, double t, bool wide) {
  if (wide) return 1 - std::pow(beta, t);
  const float rounded = static_cast<float>(beta);
  return 1 - std::pow(static_cast<double>(rounded), t);
}

}  // namespace

AdamW::AdamW(NamedTensors parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters), options.groups, options.lr, options.weight_decay,
                options.settings),
      options_(options) {
  const AdamWOptions& o = options_;
  check(o.beta1 >= 0 && o.beta1 < 1, "adamw: beta1 must be in [0, 1), got {}", o.beta1);
  check(o.beta2 >= 0 && o.beta2 < 1, "adamw: beta2 must be in [0, 1), got {}", o.beta2);
  check_setting("adamw", "eps", o.eps);
  check_setting("adamw", "weight_decay", o.weight_decay);
  check_state_dtype("m_dtype", o.m_dtype);
  check_state_dtype("v_dtype", o.v_dtype);
  if (o.rounding == Rounding::nearest && o.v_dtype == DType::bf16 && o.beta2 > 0.99)
    log_line(
        message("adamw: bf16 v cannot decay with beta2 {}: its steps are below bf16 precision, so "
                "it sticks too high; use stochastic rounding, beta2 <= 0.99 or v_dtype f32",
                o.beta2));
  if (o.rounding == Rounding::nearest && o.v_dtype == DType::e4m3)
    log_line(
        "adamw: e4m3 v cannot follow g^2 with nearest rounding: its steps are below e4m3 "
        "precision; use stochastic rounding or v_dtype f32");
  set_rounding(o.rounding);
  m_ = add_state("m", o.m_dtype);
  v_ = add_state("v", o.v_dtype);
  states_[v_].keeps_above_zero = true;
  add_masters(o.master_weights);
  slots_.reserve(parameters_.size());
}

StepNumbers AdamW::numbers(bool wide) const {
  const auto t = static_cast<double>(steps_);
  return {lr_, bias_correction(options_.beta1, t, wide), bias_correction(options_.beta2, t, wide),
          static_cast<std::uint64_t>(steps_)};
}

void AdamW::update(const double* grad_scale, std::size_t begin, std::size_t end) {
  for (const bool wide : {false, true}) update_all(wide, grad_scale, begin, end);
}

void AdamW::update_all(bool wide, const double* grad_scale, std::size_t begin, std::size_t end) {
  slots_.clear();
  std::int64_t chunks = 0;
  Tensor any;
  for (std::size_t i = begin; i < end; ++i) {
    const Tensor& p = parameters_[i].tensor;
    AdamSlot slot;
    if ((p.dtype() == DType::f64) != wide || !fill_slot(i, slot)) continue;
    any = p;
    slot.n = p.numel();
    chunks += optimizer_chunks(&slot, 1, p.device().is_gpu());
    if (p.is_meta()) {
      slots_.push_back(slot);
      continue;
    }
    const State &m = states_[m_], &v = states_[v_];
    slot.m = m.tensors[i].raw();
    slot.v = v.tensors[i].raw();
    slot.m_dtype = m.tensors[i].dtype();
    slot.v_dtype = v.tensors[i].dtype();
    if (m.scales[i].defined()) slot.m_scale = m.scales[i].raw();
    if (v.scales[i].defined()) slot.v_scale = v.scales[i].raw();
    slots_.push_back(slot);
  }
  if (chunks == 0) return;
  AdamStep step;
  step.beta1 = options_.beta1;
  step.beta2 = options_.beta2;
  step.eps = options_.eps;
  step.seed = options_.seed;
  step.now = numbers(wide);
  step.on_device = numbers_on_device([this, wide] { return numbers(wide); });
  step.decoupled = options_.decoupled;
  step.grad_scale = grad_scale;
  const CategoryScope category(Category::optimizer);
  const auto count = static_cast<std::int64_t>(slots_.size());
  const std::int64_t table = slot_table_bytes<AdamSlot>(count, any.device().is_gpu());
  const Tensor scratch = Tensor::empty({2 * chunks + table / 4}, DType::f32, any.device());
  count_slots(slots_.data(), count);
  dispatch<cpu::adam_step, cuda::adam_step>(scratch, slots_.data(), count, step);
}

}  // namespace weft::optim
