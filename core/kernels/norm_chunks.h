#pragma once
#include <algorithm>
#include <cstdint>

namespace weft {

/// dweight and dbias of a norm are sums over rows. The rows are split into this many chunks; each
/// chunk is summed separately, and the chunks are added in order. The number is enough for many
/// threads and does not depend on their number. On a GPU a chunk is a thread block: three for each
/// of 132 multiprocessors.
inline std::int64_t norm_chunks(std::int64_t rows, bool gpu = false) {
  if (gpu) return std::clamp<std::int64_t>((rows + 7) / 8, 1, 396);
  return std::clamp<std::int64_t>((rows + 15) / 16, 1, 64);
}

}  // namespace weft
