#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "weft/autograd/elementwise.h"
#include "weft/core/tensor.h"

namespace weft::nn {

/// What a parallel plan puts around a layer whose weights are spread over ranks. A layer without
/// one pays nothing; a function that is not set is passed over.
struct Boundary {
  std::function<Tensor(const Tensor& x)> before;  ///< what the layer is called on
  /// What comes out, without the layer's bias, which is added once behind it.
  std::function<Tensor(Tensor y)> after;
  /// In the place of x weight^T + bias. The bias is null where there is an `after`.
  std::function<Tensor(const Tensor& x, const Tensor& weight, const Tensor& bias)> product;

  /// after(y) + bias
  Tensor finish(Tensor y, const Tensor& bias) const {
    const Tensor whole = after(std::move(y));
    return bias ? add(whole, bias) : whole;
  }
};

}  // namespace weft::nn
