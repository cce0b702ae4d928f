#include "weft/autograd/fp8_row_amax.h"

#include <utility>

#include "weft/autograd/fp8.h"

namespace weft::fp8 {
namespace {

// Found by the number of the recorded tensor, which no other tensor of the process gets: a handle
// would keep its memory.
struct Known {
  std::uint64_t id = 0;
  std::uint32_t version = 0;
  Tensor amax;
};

constexpr int kKnown = 4;  // as many tensors as an MoE layer makes before their products
struct Memory {
  Known items[kKnown];
  int next = 0;
};
thread_local Memory memory;

bool uses_magnitudes() {
  const Recipe* const recipe = Autocast::current();
  return recipe && recipe->scaling != Scaling::block;
}

}  // namespace

Tensor row_amax_for(const Tensor& y, bool recorded) {
  if (!recorded || !uses_magnitudes() || y.numel() == 0 || y.ndim() == 0 ||
      (y.dtype() != DType::f32 && y.dtype() != DType::bf16))
    return {};
  return Tensor::empty({y.numel() / y.dim(-1)}, DType::f32, y.device());
}

void remember_row_amax(const Tensor& y, const Tensor& amax) {
  if (!amax.defined()) return;
  for (const Known& k : memory.items)  // a view of the whole tensor is the same one
    if (k.amax.defined() && k.id == y.impl()->tape_id && k.version == y.version()) return;
  memory.items[memory.next] = {y.impl()->tape_id, y.version(), amax};
  memory.next = (memory.next + 1) % kKnown;
}

Tensor row_amax_of(const Tensor& x) {
  if (!uses_magnitudes() || x.impl()->leaf) return {};
  for (const Known& k : memory.items)
    if (k.amax.defined() && k.id == x.impl()->tape_id && k.version == x.version()) return k.amax;
  return {};
}

Autocast::~Autocast() {
  innermost_ = outer_;
  if (!outer_) memory = {};
}

}  // namespace weft::fp8
