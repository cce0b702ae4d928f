#pragma once
#include <functional>
#include <string>

#include "weft/core/tensor.h"

namespace weft {

struct GradcheckOptions {
  double step = 1e-6;         ///< step of the central difference
  double tolerance = 1e-6;    ///< bound on |difference - tape| / max(1, |difference|)
  bool second_order = false;  ///< also check the gradient of the gradient
  std::uint64_t seed = 7;     ///< seed of the random cotangent
};

/// Compares the tape's gradients of f with central differences, element by element, in f64. The
/// scalar is sum(f(inputs) * r) for a fixed random r. With r = 1 the gradient of a softmax or a
/// layer norm would be almost 0, and a wrong backward would pass.
///
/// Dtypes   every input that requires a gradient must be f64; integer inputs are passed through
/// Returns  "", or a description of the first mismatch: input, element, both numbers
/// Throws   Error when an input is neither f64 nor an integer
std::string gradcheck(const std::function<Tensor(const TensorList&)>& f, const TensorList& inputs,
                      const GradcheckOptions& options = {});

}  // namespace weft
