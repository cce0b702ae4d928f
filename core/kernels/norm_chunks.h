#pragma once
#include <algorithm>
#include <cstdint>

namespace weft {

/// dweight and dbias of a norm sum over rows. The rows are cut into this many chunks, each summed
/// on its own and the chunks then added in order: enough for many threads, and the same for any
/// number. On a GPU a chunk is a block of threads: three for each of 132 multiprocessors.
inline std::int64_t norm_chunks(std::int64_t rows, bool gpu = false) {
  if (gpu) return std::clamp<std::int64_t>((rows + 7) / 8, 1, 396);
  return std::clamp<std::int64_t>((rows + 15) / 16, 1, 64);
}

}  // namespace weft
