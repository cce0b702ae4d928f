#pragma once
#include <vector>

#include "weft/core/tensor.h"

namespace weft {

// Values on the host: these functions wait for the device.

/// Have both the same shape, dtype and values? A NaN equals nothing.
/// Throws Error on a null handle, on two devices, and on the meta device.
bool equal(const Tensor& a, const Tensor& b);
/// Is |a - b| <= atol + rtol |b| for every element, or both equal (infinite)? Compares in f64.
/// Throws Error on shapes that do not broadcast, and where equal() throws.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8);

/// Every element, row-major, converted to T.
template <class T = double>
std::vector<T> to_vector(const Tensor& x) {
  static_assert(!std::is_same_v<T, bool>, "a std::vector<bool> is no array: use std::uint8_t");
  const Tensor here = x.detach().to(dtype_of<T>()).to(kCpu).contiguous();
  const T* const first = here.numel() ? here.data<T>() : nullptr;
  return std::vector<T>(first, first + here.numel());
}

}  // namespace weft
