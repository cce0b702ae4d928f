#pragma once
#include <cstdint>

namespace weft {

/// How a loss reduces its per-element values.
enum class Reduction : std::uint8_t { none, mean, sum };

}  // namespace weft
