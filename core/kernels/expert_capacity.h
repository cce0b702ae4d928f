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

struct LimitCapacityIn {
  const Tensor &probs, &experts;  ///< (T, k); i64 experts
  std::int64_t count;             ///< of experts
  std::int64_t capacity;          ///< most slots that each expert keeps
  double factor;  ///< above 0, replaces capacity: capacity_per_expert() of the slots that have an
                  ///< expert
  DropPolicy policy;
  Device device() const { return probs.device(); }
};
/// probs and experts, with 0 and -1 in the slots that are dropped or have no expert in [0, count).
struct LimitCapacityOut {
  const Tensor &probs, &experts;  ///< (T, k)
  const Tensor& scratch;          ///< i64, T * k + count + 1 elements
};
using LimitCapacityKernel = void(const LimitCapacityIn& in, const LimitCapacityOut& out);

namespace cpu {
LimitCapacityKernel limit_capacity;
}  // namespace cpu
namespace cuda {
LimitCapacityKernel limit_capacity;
}  // namespace cuda

}  // namespace weft
