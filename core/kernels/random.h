#pragma once
#include "weft/core/philox.h"
#include "weft/core/tensor.h"

namespace weft {

enum class Distribution : std::uint8_t {
  uniform,   ///< in [a, b)
  normal,    ///< mean a, standard deviation b
  bernoulli  ///< 1 with probability a, else 0
};

/// Draws into a contiguous tensor of any dtype as core/random.cpp does on the CPU.
using DrawKernel = void(const Tensor& t, const RandomKey& key, Distribution distribution, double a,
                        double b);

namespace cuda {
DrawKernel draw;
}  // namespace cuda

}  // namespace weft
