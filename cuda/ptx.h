#pragma once
// Instructions that C++ cannot express, one function each. For the emulated GPU they are C++ with
// the exact element layout (cuda/emu/ptx.h); tests/cuda/test_ptx.cpp compares both with one
// reference.
//
// The fragments held by the 32 lanes of a warp, with g = lane / 4 and t = lane % 4; a register
// holds two numbers of 16 bits, the one with the lower column (of A) or row (of B) in the lower
// half:
//   A (16, 16)  a[r]: row g + 8 (r % 2), columns 2 t and 2 t + 1, + 8 (r / 2)
//   B (16, 8)   b[r]: rows 2 t and 2 t + 1, + 8 r, column g
//   C (16, 8)   c[r]: row g + 8 (r / 2), column 2 t + r % 2; f32
#include "weft/cuda/device.h"

#if WEFT_CUDA_EMU
#include "weft/cuda/emu/ptx.h"
#else

namespace weft::cuda {

namespace detail {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

}  // namespace detail

/// c += A B, bf16 or f16 in, f32 sums.
template <class T>
__device__ inline void mma_16816(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                 std::uint32_t b1) {
  if constexpr (std::is_same_v<T, bf16>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lane i passes the address of
/// row i % 8 of matrix i / 8, 16 bytes at a multiple of 16. r[j]: elements 2 t and 2 t + 1 of row g
/// of matrix j; if transposed, of column g.
template <bool Transposed>
__device__ inline void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
  const std::uint32_t p = detail::shared_address(row);
  if constexpr (Transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(p)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(p)
                 : "memory");
}

/// Starts a copy of 16 bytes into shared memory, both addresses at multiples of 16. Without
/// `present` it writes zeros and reads nothing; `from` must still be a device address.
__device__ inline void cp_async16(void* to, const void* from, bool present = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(detail::shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(present ? 16 : 0)
               : "memory");
}
/// Groups the copies that this thread started since the last commit.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until all but the latest N groups of this thread have completed. Other threads see them
/// only after a barrier.
template <int N>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

/// x rounded to bf16 or f16 (ties to even), infinities and subnormals included. NaN becomes 0x7fff.
/// Two results that share a register are computed by one instruction, F2FP.
template <class T>
__device__ inline T round_half(float x) {
  T r;
  if constexpr (std::is_same_v<T, bf16>)
    asm("cvt.rn.bf16.f32 %0, %1;\n" : "=h"(r.bits) : "f"(x));
  else
    asm("cvt.rn.f16.f32 %0, %1;\n" : "=h"(r.bits) : "f"(x));
  return r;
}
/// Two f32, rounded in the same way, in one register.
template <class T>
__device__ inline std::uint32_t pack_halves(float low, float high) {
  std::uint32_t r;
  if constexpr (std::is_same_v<T, bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
/// The value of an f16, exactly. A NaN stays one.
__device__ inline float widen_f16(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;\n" : "=f"(y) : "h"(x.bits));
  return y;
}

/// 2^x, accurate to about 2 ulp; subnormal results are 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace weft::cuda

#endif
