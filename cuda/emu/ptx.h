#pragma once
// cuda/ptx.h for the emulated GPU: the same functions in C++. That file describes the fragments.
#include <limits>

#include "weft/core/error.h"
#include "weft/core/low_precision.h"
#include "weft/cuda/emu/device.h"

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

template <class T>
float half_of(std::uint32_t pair, int upper) {
  T half;
  half.bits = static_cast<std::uint16_t>(upper ? pair >> 16 : pair);
  return static_cast<float>(half);
}

struct MmaOperands {
  float* c;
  const std::uint32_t* a;
  std::uint32_t b[2];
};

template <class T>
void mma_of_warp(MmaOperands** lanes, unsigned) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int upper = 0; upper < 2; ++upper) {
      for (int r = 0; r < 4; ++r)
        a[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + upper] = half_of<T>(lanes[lane]->a[r], upper);
      for (int r = 0; r < 2; ++r)
        b[2 * t + 8 * r + upper][g] = half_of<T>(lanes[lane]->b[r], upper);
    }
  }
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < 4; ++r) {
      const int row = lane / 4 + 8 * (r / 2), column = 2 * (lane % 4) + r % 2;
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      lanes[lane]->c[r] += sum;
    }
}

}  // namespace detail

template <class T>
inline void mma_16816(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                      std::uint32_t b1, emu::Loc loc = emu::Loc::current()) {
  detail::MmaOperands operands{c, a, {b0, b1}};
  emu::Engine::get().whole_warp(operands, "mma.m16n8k16", loc, detail::mma_of_warp<T>);
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
