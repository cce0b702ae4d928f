#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// Which tokens an expert keeps when it was chosen more often than it has room.
enum class DropPolicy : std::uint8_t {
  probability,  ///< those with the largest probabilities; equal ones by lowest token number
  position,     ///< those with the lowest token numbers
};

/// ceil(slots / experts * factor), the same on every device.
constexpr std::int64_t expert_room(std::int64_t slots, std::int64_t experts, double factor) {
  // What rounding added to a whole number is not another token.
  const double room =
      static_cast<double>(slots) * factor / static_cast<double>(experts) * (1 - 1e-12);
  const auto whole = static_cast<std::int64_t>(room);
  return whole + (static_cast<double>(whole) < room ? 1 : 0);
}

/// kept_probs and kept_experts are probs and experts (T, k), with 0 and -1 where slot t * k + j is
/// not among the `capacity` slots of its expert that are kept, or has no expert in [0, count). A
/// factor above 0 takes the place of the capacity: expert_room() of the slots that have an expert.
/// scratch: i64, T * k + count + 1.
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
