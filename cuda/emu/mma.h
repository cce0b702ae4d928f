#pragma once
// mma.m16n8k16 of a whole warp, behind cuda/emu/ptx.h.
#include <cstdint>

namespace weft::emu {

/// The registers of one lane.
struct MmaOperands {
  float* c;
  const std::uint32_t* a;
  std::uint32_t b[2];
};

/// c += A B of the 32 lanes; T is bf16 or f16.
template <class T>
void mma_of_warp(MmaOperands** lanes);

}  // namespace weft::emu
