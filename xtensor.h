#pragma once
// Optional: xtensor expressions over Weft's CPU tensors, and Weft tensors over xtensor's memory,
// without a copy in either direction. Needs xtensor's headers; weft/weft.h does not include this.
#include <vector>
#include <xtensor/xadapt.hpp>
#include <xtensor/xarray.hpp>
#include <xtensor/xstrided_view.hpp>

#include "weft/core/error.h"
#include "weft/core/tensor.h"

namespace weft {

/// An xtensor view of a CPU tensor: same memory, shape and strides; writes go both ways. It does
/// not own the memory: keep the tensor alive. Call bump_version() after writing to a recorded
/// tensor. Throws Error when T is not the tensor's dtype, or the tensor has no data on the host.
template <class T>
auto xt_view(const Tensor& t) {
  check(t.device().is_cpu(), "xt_view: the tensor must be on the cpu, got {}", t.device());
  std::size_t reach = t.numel() != 0;  // elements from the first to the last one in memory
  for (int i = 0; i < t.ndim() && reach; ++i)
    reach += static_cast<std::size_t>((t.dim(i) - 1) * t.strides()[i]);
  // A strided_view rather than adapt() with strides: `view += 1` on that would walk over the gaps.
  return xt::strided_view(
      xt::adapt(t.data<T>(), reach, xt::no_ownership(), std::vector<std::size_t>{reach}),
      xt::dynamic_shape<std::size_t>(t.shape().begin(), t.shape().end()),
      xt::dynamic_shape<std::ptrdiff_t>(t.strides().begin(), t.strides().end()), 0,
      t.is_contiguous() ? xt::layout_type::row_major : xt::layout_type::dynamic);
}

/// A tensor that takes over the array's memory and frees it with its last handle.
template <class T>
Tensor from_xtensor(xt::xarray<T>&& array) {
  auto* owner = new xt::xarray<T>(std::move(array));
  const Shape shape(owner->shape().begin(), owner->shape().end());
  return Tensor::wrap(
      owner->data(), shape, dtype_of<T>(),
      [](void* context) { delete static_cast<xt::xarray<T>*>(context); }, owner);
}

}  // namespace weft
