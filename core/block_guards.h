#pragma once
// Debug mode of the allocator: guard zones around blocks, and NaN in fresh memory.
#include <cstdint>

#include "weft/core/storage.h"

namespace weft::detail {

inline constexpr std::int64_t kGuard = 64;  ///< bytes on each side of a block

/// Turns the block into [guard][payload][guard]. With `fill_nan` every float in the payload is NaN.
void arm_guards(Storage* s, bool fill_nan);
/// Turns it back, poisons the payload, and counts the block if a guard zone was overwritten.
void disarm_guards(Storage* s);

}  // namespace weft::detail
