#pragma once
#include <utility>

#include "weft/autograd/backward.h"

namespace weft::detail {

/// Where the backward of a norm puts the gradient of its weight or bias.
struct RowGradient {
  Tensor to;  ///< (C), or null if none is needed
  /// The kernel adds to the sum of earlier passes: no launch converts, none adds, and nothing is
  /// rounded to bf16 in between. On a GPU, where a launch costs as much as such a small sum.
  bool adds = false;

  RowGradient() = default;
  /// `other`: the gradient that the same kernel writes; one tensor may be weight and bias.
  RowGradient(Backward& b, int input, const Tensor& x, const Tensor& other) {
    const Shape row{x.dim(-1)};
    if (x.device().is_gpu()) to = b.accumulator(input, row, x.dtype(), true);
    adds = to.defined() && !(other.defined() && other.same(to));
    if (!adds) to = Tensor::empty(row, x.dtype(), x.device());
  }
  void give(Backward& b, int input) {
    if (to.defined() && !adds) b.add(input, std::move(to));
  }
};

}  // namespace weft::detail
