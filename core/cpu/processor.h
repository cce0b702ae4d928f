#pragma once
#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace weft::cpu {

/// What the choices of kernels ask about the processor beyond its instruction set.
inline bool is_amd() {
#if defined(__x86_64__)
  static const bool found = __builtin_cpu_is("amd");
  return found;
#else
  return false;
#endif
}

/// sysconf(name) within [least, most]; `least` where the system does not know it.
inline std::int64_t cache_bytes(int name, std::int64_t least, std::int64_t most) {
  return std::clamp(std::int64_t{sysconf(name)}, least, most);
}

/// Bytes of a core's L2, taken as at least 256 KiB and at most 2 MiB.
inline std::int64_t l2_bytes() {
  static const std::int64_t found = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 256 << 10, 2 << 20);
  return found;
}

}  // namespace weft::cpu
