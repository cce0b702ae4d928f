#pragma once
#include "weft/core/dtype.h"
#include "weft/core/philox.h"
#include "weft/core/tensor.h"

namespace weft {

enum class Distribution : std::uint8_t {
  uniform,   ///< in [a, b)
  normal,    ///< mean a, standard deviation b
  bernoulli  ///< 1 with probability a, else 0
};

/// The largest number of the dtype in [low, high), or `high` if it has none: numbers near high
/// would be rounded to it. `high` for integers, whose numbers are cut off.
double uniform_limit(DType dtype, double low, double high);

/// Draws into a contiguous tensor of any dtype as core/random.cpp does on the CPU.
using DrawKernel = void(const Tensor& t, const RandomKey& key, Distribution distribution, double a,
                        double b);

namespace cuda {
DrawKernel draw;
}  // namespace cuda

}  // namespace weft
