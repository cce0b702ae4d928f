#pragma once
#include <cstddef>
#include <cstdint>

namespace weft::cuda {

inline constexpr std::int64_t kMaxGridX = 0x7fffffff, kMaxGridYZ = 65535;

/// Throws Error (Fault::system) "launch: a grid must have at most ... blocks, got ...".
[[noreturn]] void refuse_grid(std::int64_t x, std::int64_t y, std::int64_t z);

/// Throws Error (Fault::system) that names the card, its compute capability, the code that this
/// build has, and how to build for the card. `driver`: what the driver says.
[[noreturn]] void refuse_code(int device, const char* driver);

/// Throws Error (Fault::system) "launch: a block must ask for at most ... bytes of shared memory on
/// ..., got ...".
[[noreturn]] void refuse_shared_memory(int device, std::int64_t most, std::size_t asked);

}  // namespace weft::cuda
