#pragma once
#include <cstdint>

namespace weft {

/// What a loss makes of its per-element values.
enum class Reduction : std::uint8_t { none, mean, sum };

}  // namespace weft
