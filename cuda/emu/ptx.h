#pragma once
// cuda/ptx.h for the emulated GPU: the same functions in C++. That file describes the fragments.
#include <limits>

#include "weft/core/error.h"
#include "weft/core/low_precision.h"
#include "weft/cuda/emu/device.h"
#include "weft/cuda/emu/mma.h"

namespace weft::cuda {

namespace detail {

inline void check_shared_address(const void* p, const char* what, const emu::Loc& loc) {
  emu::Engine& engine = emu::Engine::get();
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  if (!engine.is_shared(p))
    engine.fail(message("{}: the address is not in shared memory, at {}", what, engine.where(loc)));
  if (at % 16 != 0)
    engine.fail(message("{}: the shared address must be a multiple of 16, is {} past one, at {}",
                        what, at % 16, engine.where(loc)));
}

}  // namespace detail

template <class T>
inline void mma_16816(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                      std::uint32_t b1, emu::Loc loc = emu::Loc::current()) {
  emu::MmaOperands operands{c, a, {b0, b1}};
  emu::Engine::get().whole_warp(
      operands, "mma.m16n8k16", loc,
      [](emu::MmaOperands** lanes, unsigned) { emu::mma_of_warp<T>(lanes); });
}

template <bool Transposed>
inline void ldmatrix_x4(std::uint32_t (&r)[4], const void* row,
                        emu::Loc loc = emu::Loc::current()) {
  detail::check_shared_address(row, "ldmatrix", loc);
  struct Arg {
    std::uint16_t row[8];
    std::uint32_t* r;
  } arg;
  std::memcpy(arg.row, row, 16);  // before the rendezvous: this lane reads the row
  arg.r = r;
  emu::Engine::get().whole_warp(arg, "ldmatrix.x4", loc, [](Arg** lanes, unsigned) {
    for (int lane = 0; lane < 32; ++lane)
      for (int j = 0; j < 4; ++j) {
        const int g = lane / 4, i = lane % 4 * 2;
        const auto element = [&](int k) -> std::uint32_t {
          return Transposed ? lanes[8 * j + k]->row[g] : lanes[8 * j + g]->row[k];
        };
        lanes[lane]->r[j] = element(i) | element(i + 1) << 16;
      }
  });
}

inline void cp_async16(void* to, const void* from, bool present = true,
                       emu::Loc loc = emu::Loc::current()) {
  detail::check_shared_address(to, "cp.async", loc);
  const auto at = reinterpret_cast<std::uintptr_t>(from);
  if (at % 16 != 0)
    emu::Engine::fail(
        message("cp.async: the global address must be a multiple of 16, is {} past one, at {}",
                at % 16, emu::Engine::where(loc)));
  emu::Engine::get().copy_later(to, present ? from : nullptr, 16);
}
inline void cp_async_commit() { emu::Engine::get().commit_copies(); }
template <int N>
inline void cp_async_wait() {
  emu::Engine::get().finish_copies(N);
}

template <class T>
T round_half(float x) {
  T r(x);
  if (x != x) r.bits = 0x7fff;
  return r;
}
template <class T>
std::uint32_t pack_halves(float low, float high) {
  return std::uint32_t{round_half<T>(low).bits} | std::uint32_t{round_half<T>(high).bits} << 16;
}
inline float widen_f16(f16 x) { return static_cast<float>(x); }

inline float exp2_approx(float x) {
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
}

}  // namespace weft::cuda
