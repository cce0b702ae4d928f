#pragma once
#include <functional>
#include <string>

#include "weft/core/tensor.h"

namespace weft {

struct GradcheckOptions {
  double step = 1e-6;         ///< of the central difference
  double tolerance = 1e-6;    ///< on |difference - tape| / max(1, |difference|)
  bool second_order = false;  ///< check the gradient of the gradient too
  std::uint64_t seed = 7;     ///< of the cotangent
};

/// Compares the tape's gradients of f with central differences, element by element, in f64.
/// The scalar is sum(f(inputs) * r) for a fixed random r: with r = 1 the gradient of a softmax or a
/// layer norm is almost 0, and a wrong backward would pass.
///
/// Dtypes   every input with a gradient must be f64; integer inputs are passed through
/// Returns  "" or the first mismatch in words: input, element, both numbers
/// Throws   Error when an input is neither f64 nor an integer
std::string gradcheck(const std::function<Tensor(const TensorList&)>& f, const TensorList& inputs,
                      const GradcheckOptions& options = {});

}  // namespace weft
