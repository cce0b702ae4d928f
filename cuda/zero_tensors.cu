// All tensors of a model set to 0 by one launch; one fill each would be a hundred launches a step.
#include "weft/core/kernels/optimizer.h"
#include "weft/cuda/slots.h"

namespace weft::cuda {
namespace {

__global__ void __launch_bounds__(kSlotThreads)
    zero_tensors_kernel(const PlacedSlot<ZeroSlot>* slots, std::int64_t count) {
  const PlacedSlot<ZeroSlot> placed = slot_of(slots, count, blockIdx.x);
  const ZeroSlot& s = placed.slot;
  each_four(placed, blockIdx.x, [&](const Four& f) {
    if (s.dtype == DType::f64)
      write_as<double>(s.data, f, Pack<double, 4>{});
    else
      write_four<float>(s.data, s.dtype, f, Pack<float, 4>{});
  });
}

}  // namespace

void zero_tensors(const Tensor& scratch, const ZeroSlot* slots, std::int64_t count) {
  const auto table = upload(scratch, slots, count,
                            [](const ZeroSlot& s) { return four_at_once(s.data, s.dtype); });
  launch(zero_tensors_kernel, grid_of(table.chunks), kSlotThreads, 0, table.slots, count);
}

}  // namespace weft::cuda
