#pragma once

namespace weft::cpu {

/// What the choices of kernels ask about the processor beyond its instruction set.
inline bool is_amd() {
#if defined(__x86_64__)
  // Zen 3, of the same family, has no 512-bit vectors.
  static const bool found = __builtin_cpu_is("amd");
  return found;
#else
  return false;
#endif
}

/// Whether the processor computes 512-bit vectors in two halves, as AMD's Zen 4 does.
inline bool halves_vectors() {
#if defined(__x86_64__)
  // Zen 3, of the same family, has no 512-bit vectors.
  static const bool found = __builtin_cpu_is("amdfam19h") && __builtin_cpu_supports("avx512f");
  return found;
#else
  return false;
#endif
}

}  // namespace weft::cpu
