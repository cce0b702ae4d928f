#pragma once
#include <cstdint>

#include "weft/core/cuda.h"

namespace weft::cuda::detail {

/// A larger copy is left to the driver, which may wait for it.
inline constexpr std::int64_t kMostStaged = 64 << 20;

/// Copies `bytes` of the host's memory to a GPU in the order of the stream; they may be changed as
/// soon as it returns. Handed pageable memory, the driver would hold the host up until a large copy
/// is done. So they go through pinned buffers, each used again when its copy has run.
void upload(void* to, const void* from, std::int64_t bytes, const Stream& stream);

/// Pinned bytes that uploads have asked for so far. A steady step adds none.
std::int64_t staging_bytes();

}  // namespace weft::cuda::detail
