#include "weft/cuda/emu/mma.h"

#include "weft/core/low_precision.h"

namespace weft::emu {
namespace {

template <class T>
float half_of(std::uint32_t pair, int upper) {
  T half;
  half.bits = static_cast<std::uint16_t>(upper ? pair >> 16 : pair);
  return static_cast<float>(half);
}

}  // namespace

template <class T>
void mma_of_warp(MmaOperands** lanes) {
  // Columns are innermost, so that the loop over them is one of vectors.
  float a[16][16], b[16][8], sum[16][8] = {};
  for (int lane = 0; lane < 32; ++lane) {
    const MmaOperands& from = *lanes[lane];
    const int g = lane / 4, t = lane % 4;
    for (int upper = 0; upper < 2; ++upper) {
      for (int r = 0; r < 4; ++r)
        a[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + upper] = half_of<T>(from.a[r], upper);
      for (int r = 0; r < 2; ++r) b[2 * t + 8 * r + upper][g] = half_of<T>(from.b[r], upper);
    }
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) sum[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; ++lane)
    for (int r = 0; r < 4; ++r)
      lanes[lane]->c[r] += sum[lane / 4 + 8 * (r / 2)][2 * (lane % 4) + r % 2];
}

template void mma_of_warp<bf16>(MmaOperands** lanes);
template void mma_of_warp<f16>(MmaOperands** lanes);

}  // namespace weft::emu
