#pragma once
#include <array>

#include "weft/core/tensor.h"

namespace weft::cpu {

/// The axes of N tensors of one shape, merged where all tensors step through two axes as if they
/// were one, so that the innermost loop is as long as possible.
template <int N>
struct MergedAxes {
  Shape shape;
  std::array<Shape, N> steps;

  explicit MergedAxes(const std::array<const Tensor*, N>& tensors) {
    const Tensor& first = *tensors[0];
    for (int i = 0; i < first.ndim(); ++i) {
      const std::int64_t n = first.dim(i);
      if (n == 1) continue;
      if (continues(tensors, i, n)) {
        shape[shape.size() - 1] *= n;
        for (int k = 0; k < N; ++k) steps[k][shape.size() - 1] = tensors[k]->strides()[i];
      } else {
        shape.push_back(n);
        for (int k = 0; k < N; ++k) steps[k].push_back(tensors[k]->strides()[i]);
      }
    }
    if (shape.empty()) {
      shape.push_back(1);
      for (int k = 0; k < N; ++k) steps[k].push_back(1);
    }
  }

 private:
  bool continues(const std::array<const Tensor*, N>& tensors, int axis, std::int64_t n) const {
    if (shape.empty()) return false;
    for (int k = 0; k < N; ++k)
      if (steps[k].back() != tensors[k]->strides()[axis] * n) return false;
    return true;
  }
};

}  // namespace weft::cpu
