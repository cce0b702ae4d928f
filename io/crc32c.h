#pragma once
#include <cstddef>
#include <cstdint>

namespace weft::io {

/// CRC-32C (Castagnoli) of `data`, continued from the checksum `previous` of the preceding bytes.
/// Uses the SSE4.2 instruction where available.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t previous = 0);

/// The table form for other processors; public so that a test can compare the two.
std::uint32_t crc32c_table(const void* data, std::size_t bytes, std::uint32_t previous = 0);

}  // namespace weft::io
