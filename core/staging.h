#pragma once
#include <cstdint>

#include "weft/core/cuda.h"

namespace weft::cuda::detail {

/// Larger copies go to the driver directly, which may block.
inline constexpr std::int64_t kMaxStaged = 64 << 20;

/// Copies `bytes` of host memory to a GPU in stream order; the caller may change them when it
/// returns. From pageable memory the driver would block the host until a large copy is done, so the
/// copy goes through pinned buffers, which are reused when their copies have run.
void upload(void* to, const void* from, std::int64_t bytes, const Stream& stream);

/// Pinned bytes that uploads have allocated so far. A steady step adds none.
std::int64_t staging_bytes();

}  // namespace weft::cuda::detail
