#include "weft/io/crc32c.h"

#include <array>
#include <cstring>

namespace weft::io {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

/// kTables[k][b]: the checksum of byte b followed by k zero bytes.
constexpr auto kTables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> t{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t c = b;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ (c & 1 ? kPolynomial : 0);
    t[0][b] = c;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t b = 0; b < 256; ++b) t[k][b] = (t[k - 1][b] >> 8) ^ t[0][t[k - 1][b] & 255];
  return t;
}();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_sse42(const unsigned char* p,
                                                             std::size_t bytes,
                                                             std::uint32_t previous) {
  std::uint64_t c = static_cast<std::uint32_t>(~previous);
  for (; bytes >= 8; p += 8, bytes -= 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    c = __builtin_ia32_crc32di(c, word);
  }
  auto tail = static_cast<std::uint32_t>(c);
  for (; bytes > 0; ++p, --bytes) tail = __builtin_ia32_crc32qi(tail, *p);
  return ~tail;
}
#endif

}  // namespace

std::uint32_t crc32c_table(const void* data, std::size_t bytes, std::uint32_t previous) {
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint32_t c = ~previous;
  for (; bytes >= 8; p += 8, bytes -= 8) {
    std::uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + 4, 4);
    low ^= c;
    c = kTables[7][low & 255] ^ kTables[6][low >> 8 & 255] ^ kTables[5][low >> 16 & 255] ^
        kTables[4][low >> 24] ^ kTables[3][high & 255] ^ kTables[2][high >> 8 & 255] ^
        kTables[1][high >> 16 & 255] ^ kTables[0][high >> 24];
  }
  for (; bytes > 0; ++p, --bytes) c = (c >> 8) ^ kTables[0][(c ^ *p) & 255];
  return ~c;
}

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t previous) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction)
    return crc32c_sse42(static_cast<const unsigned char*>(data), bytes, previous);
#endif
  return crc32c_table(data, bytes, previous);
}

}  // namespace weft::io
