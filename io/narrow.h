#pragma once
#include <cstdint>
#include <cstring>

namespace weft::io {

/// Integers of files for which Weft has no dtype are read into a wider one, i32 or i64. Widens n
/// values at the beginning of `data`, which has room for n of type To.
using Widen = void (*)(void* data, std::int64_t n);

template <class From, class To>
void widen(void* data, std::int64_t n) {
  static_assert(sizeof(From) <= sizeof(To));
  auto* const bytes = static_cast<unsigned char*>(data);
  // Backward, so that no value is overwritten before it is read.
  for (std::int64_t i = n - 1; i >= 0; --i) {
    From narrow{};
    std::memcpy(&narrow, bytes + i * static_cast<std::int64_t>(sizeof(From)), sizeof narrow);
    const To wide = narrow;
    std::memcpy(bytes + i * static_cast<std::int64_t>(sizeof(To)), &wide, sizeof wide);
  }
}

}  // namespace weft::io
