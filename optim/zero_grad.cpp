#include <vector>

#include "weft/core/dispatch.h"
#include "weft/core/kernels/optimizer.h"
#include "weft/optim/optimizer.h"

namespace weft::optim {

// As zero_grad() of every parameter, with one kernel for all main_grads on a device.
void Optimizer::zero_grad() {
  static thread_local std::vector<ZeroSlot> slots;  // reused, so that a step allocates nothing
  slots.clear();
  Device device = kCpu;
  for (const NamedTensor& p : parameters_) {
    const Tensor main = p.tensor.main_grad();
    if (slots.empty() && main.defined()) device = main.device();
    if (!main.defined() || !main.is_contiguous() || main.device() != device) {
      p.tensor.zero_grad();
      continue;
    }
    p.tensor.set_grad({});
    main.bump_version();
    slots.push_back({main.is_meta() ? nullptr : main.raw(), main.numel(), main.dtype()});
    p.tensor.set_main_grad_filled(false);
  }
  if (slots.empty()) return;
  const auto count = static_cast<std::int64_t>(slots.size());
  count_slots(slots.data(), count);
  const Tensor scratch =
      Tensor::empty({slot_table_bytes<ZeroSlot>(count, device.is_gpu())}, DType::u8, device);
  dispatch<cpu::zero_tensors, cuda::zero_tensors>(scratch, slots.data(), count);
}

}  // namespace weft::optim
