#pragma once
#include <cstddef>
#include <cstdint>

namespace weft::io {

/// CRC-32C (Castagnoli) of `data`, going on from the checksum `previous` of the bytes before it.
/// Uses the SSE4.2 instruction where the processor has it.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t previous = 0);

/// The table form that other processors take; public so that a test compares the two.
std::uint32_t crc32c_table(const void* data, std::size_t bytes, std::uint32_t previous = 0);

}  // namespace weft::io
