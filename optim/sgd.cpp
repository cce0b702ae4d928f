#include "weft/optim/sgd.h"

#include "weft/core/allocator.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"

namespace weft::optim {

Sgd::Sgd(NamedTensors parameters, const SgdOptions& options)
    : Optimizer(std::move(parameters), options.groups, options.lr, options.weight_decay,
                options.settings),
      options_(options) {
  check(options.momentum >= 0 && options.momentum < 1, "sgd: momentum must be in [0, 1), got {}",
        options.momentum);
  check_setting("sgd", "weight_decay", options.weight_decay);
  check(!options.nesterov || options.momentum > 0, "sgd: nesterov needs a momentum above 0, got {}",
        options.momentum);
  set_rounding(options.rounding);
  if (options.momentum > 0) add_state("momentum", DType::f32);
  add_masters(options.master_weights);
  slots_.reserve(parameters_.size());
}

void Sgd::update(const double* grad_scale, std::size_t begin, std::size_t end) {
  slots_.clear();
  for (std::size_t i = begin; i < end; ++i) {
    SgdSlot slot;
    const Tensor& p = parameters_[i].tensor;
    if (!fill_slot(i, slot) || p.numel() == 0) continue;
    if (!states_.empty() && !p.is_meta()) slot.momentum = states_[0].tensors[i].raw();
    slots_.push_back(slot);
  }
  if (slots_.empty()) return;
  const auto numbers = [this] {
    return StepNumbers{.lr = lr_, .step = static_cast<std::uint64_t>(steps_)};
  };
  const SgdStep step{options_.momentum,          options_.nesterov, numbers(),
                     numbers_on_device(numbers), grad_scale,        options_.seed};
  const auto count = static_cast<std::int64_t>(slots_.size());
  const Tensor& any = parameters_[0].tensor;
  const CategoryScope category(Category::optimizer);
  const Tensor scratch =
      any.device().is_gpu()
          ? Tensor::empty({slot_table_bytes<SgdSlot>(count, true)}, DType::u8, any.device())
          : any;
  count_slots(slots_.data(), count);
  dispatch<cpu::sgd_step, cuda::sgd_step>(scratch, slots_.data(), count, step);
}

}  // namespace weft::optim
