#include "weft/optim/state_memory.h"

#include <utility>

namespace weft::optim {
namespace {

constinit thread_local OffloadMemory* in_use = nullptr;

}  // namespace

StateMemory::StateMemory(OffloadMemory& memory) : previous_(std::exchange(in_use, &memory)) {}
StateMemory::~StateMemory() { in_use = previous_; }

OffloadMemory* StateMemory::current() { return in_use; }

Tensor StateMemory::zeros(const Shape& shape, DType dtype, Device device) {
  const std::int64_t bytes = shape.numel() * static_cast<std::int64_t>(size_of(dtype));
  if (!in_use || bytes == 0 || device.is_gpu()) return Tensor::zeros(shape, dtype, device);
  OffloadMemory::Place* const place = in_use->take(bytes);
  if (!place) return Tensor::zeros(shape, dtype, device);
  if (device.is_meta()) {
    Tensor t = Tensor::empty(shape, dtype, device);
    release_storage(t);
    return t;
  }
  Tensor t = Tensor::wrap(OffloadMemory::data(place), shape, dtype);
  t.zero_();
  return t;
}

}  // namespace weft::optim
