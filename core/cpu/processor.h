#pragma once

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

}  // namespace weft::cpu
