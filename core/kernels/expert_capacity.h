#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// Which tokens an expert keeps when more are routed to it than its capacity.
enum class DropPolicy : std::uint8_t {
  probability,  ///< the most probable tokens; ties go to the lowest token number
  position,     ///< the lowest token numbers
};

/// ceil(slots / experts * factor), the same on every device.
constexpr std::int64_t capacity_per_expert(std::int64_t slots, std::int64_t experts,
                                           double factor) {
  // Ignore the rounding error above a whole number.
  const double room =
      static_cast<double>(slots) * factor / static_cast<double>(experts) * (1 - 1e-12);
  const auto whole = static_cast<std::int64_t>(room);
  return whole + (static_cast<double>(whole) < room ? 1 : 0);
}

/// kept_probs and kept_experts are probs and experts (T, k), with 0 and -1 where the expert of slot
/// t * k + j drops the slot or is not in [0, count). Each expert keeps at most `capacity` slots. A
/// factor above 0 replaces the capacity by capacity_per_expert() of the number of slots that have
/// an expert. scratch: i64, T * k + count + 1.
using LimitCapacityKernel = void(const Tensor& probs, const Tensor& experts, std::int64_t count,
                                 std::int64_t capacity, double factor, DropPolicy policy,
                                 const Tensor& scratch, const Tensor& kept_probs,
                                 const Tensor& kept_experts);

namespace cpu {
LimitCapacityKernel limit_capacity;
}  // namespace cpu
namespace cuda {
LimitCapacityKernel limit_capacity;
}  // namespace cuda

}  // namespace weft
