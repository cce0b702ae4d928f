#pragma once
// CUDA's language for kernels that run on the CPU. Kernels include this instead of the toolkit's
// headers.
#include <cmath>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "weft/cuda/emu/engine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define threadIdx (::weft::emu::here.thread)
#define blockIdx (::weft::emu::here.block)
#define blockDim (::weft::emu::here.block_dim)
#define gridDim (::weft::emu::here.grid_dim)

namespace weft::emu {

/// Runs every block of a grid immediately.
void run_grid(void (*body)(void*), void* context, dim3 grid, dim3 block, std::size_t shared);

/// Records that a test launched this kernel, in the file named by WEFT_EMU_KERNELS if set.
void note_launch(const void* kernel);

inline int lane() { return here.current & 31; }

/// Each lane receives the value of lane source(its index). If that lane does not participate, CUDA
/// leaves the value undefined; here it is NaN.
template <class T, class Source>
T shuffle(unsigned mask, T value, const char* what, const Loc& loc, Source source) {
  struct Arg {
    T value, result;
    int source;
  } arg{value, value, source(lane())};
  std::memset(static_cast<void*>(&arg.result), 0xff, sizeof(T));
  Engine::get().collective(mask, arg, what, loc, [](Arg** lanes, unsigned present) {
    for (unsigned rest = present; rest; rest &= rest - 1) {
      Arg& mine = *lanes[std::countr_zero(rest)];
      if (present >> mine.source & 1) mine.result = lanes[mine.source]->value;
    }
  });
  return arg.result;
}

/// Bit mask of the lanes that vote for the predicate.
inline unsigned vote(unsigned mask, bool predicate, const char* what, const Loc& loc) {
  struct Arg {
    bool predicate;
    unsigned result;
  } arg{predicate, 0};
  Engine::get().collective(mask, arg, what, loc, [](Arg** lanes, unsigned present) {
    unsigned votes = 0;
    for (unsigned rest = present; rest; rest &= rest - 1) {
      const int i = std::countr_zero(rest);
      if (lanes[i]->predicate) votes |= 1u << i;
    }
    for (unsigned rest = present; rest; rest &= rest - 1)
      lanes[std::countr_zero(rest)]->result = votes;
  });
  return arg.result;
}

/// *p = change(*p) atomically; returns the old value.
template <class T, class Change>
T atomically(T* p, Change change) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  static_assert(sizeof(T) == sizeof(Bits));
  auto* bits = reinterpret_cast<Bits*>(p);
  Bits seen = __atomic_load_n(bits, __ATOMIC_RELAXED);
  for (;;) {
    const T before = std::bit_cast<T>(seen);
    const auto after = std::bit_cast<Bits>(static_cast<T>(change(before)));
    if (__atomic_compare_exchange_n(bits, &seen, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return before;
  }
}

}  // namespace weft::emu

inline void __syncthreads(weft::emu::Loc loc = weft::emu::Loc::current()) {
  weft::emu::Engine::get().barrier(0, -1, "__syncthreads", loc);
}
inline void __syncwarp(unsigned mask = ~0u, weft::emu::Loc loc = weft::emu::Loc::current()) {
  int none = 0;
  weft::emu::Engine::get().collective(mask, none, "__syncwarp", loc, [](int**, unsigned) {});
}

template <class T>
T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32,
                  weft::emu::Loc loc = weft::emu::Loc::current()) {
  return weft::emu::shuffle(mask, v, "__shfl_xor_sync", loc, [=](int lane) {
    const int from = lane ^ bits;
    return from / width > lane / width ? lane : from;
  });
}
template <class T>
T __shfl_down_sync(unsigned mask, T v, int delta, int width = 32,
                   weft::emu::Loc loc = weft::emu::Loc::current()) {
  return weft::emu::shuffle(mask, v, "__shfl_down_sync", loc, [=](int lane) {
    return lane % width + delta < width ? lane + delta : lane;
  });
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, int delta, int width = 32,
                 weft::emu::Loc loc = weft::emu::Loc::current()) {
  return weft::emu::shuffle(mask, v, "__shfl_up_sync", loc,
                            [=](int lane) { return lane % width >= delta ? lane - delta : lane; });
}
template <class T>
T __shfl_sync(unsigned mask, T v, int from, int width = 32,
              weft::emu::Loc loc = weft::emu::Loc::current()) {
  return weft::emu::shuffle(mask, v, "__shfl_sync", loc,
                            [=](int lane) { return lane / width * width + (from & (width - 1)); });
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              weft::emu::Loc loc = weft::emu::Loc::current()) {
  return weft::emu::vote(mask, predicate != 0, "__ballot_sync", loc);
}
inline int __any_sync(unsigned mask, int predicate,
                      weft::emu::Loc loc = weft::emu::Loc::current()) {
  return weft::emu::vote(mask, predicate != 0, "__any_sync", loc) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      weft::emu::Loc loc = weft::emu::Loc::current()) {
  return weft::emu::vote(mask, predicate == 0, "__all_sync", loc) == 0;
}
template <class T>
unsigned __match_any_sync(unsigned mask, T v, weft::emu::Loc loc = weft::emu::Loc::current()) {
  struct Arg {
    T value;
    unsigned result;
  } arg{v, 0};
  weft::emu::Engine::get().collective(
      mask, arg, "__match_any_sync", loc, [](Arg** lanes, unsigned present) {
        for (unsigned rest = present; rest; rest &= rest - 1) {
          Arg& mine = *lanes[std::countr_zero(rest)];
          for (unsigned other = present; other; other &= other - 1) {
            const int j = std::countr_zero(other);
            if (lanes[j]->value == mine.value) mine.result |= 1u << j;
          }
        }
      });
  return arg.result;
}

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T v) {
  *p = v;
}

template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  return weft::emu::atomically(p, [=](T was) { return was + v; });
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v) {
  return weft::emu::atomically(p, [=](T was) { return was < v ? v : was; });
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> v) {
  return weft::emu::atomically(p, [=](T was) { return v < was ? v : was; });
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> v) {
  return weft::emu::atomically(p, [=](T) { return v; });
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> v) {
  return weft::emu::atomically(p, [=](T was) { return was == expected ? v : was; });
}

inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
