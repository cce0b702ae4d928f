#pragma once
#include "weft/core/tensor.h"

namespace weft::test {

// One warp each, on device memory.

/// c (32, 4) f32 += fragments a (32, 4), b (32, 2), i32: pairs of bf16 or f16.
void run_mma(DType dtype, const Tensor& a, const Tensor& b, const Tensor& c);
/// `tile` (bytes) goes to shared memory; lane i loads from byte offset[i] of it, i32. out (32, 4).
void run_ldmatrix(bool transposed, const Tensor& tile, const Tensor& offset, const Tensor& out);
/// Thread i copies 16 bytes i of `from`, or zeros where present[i] is 0, in two groups. out[0] is
/// read while one group is still in flight, out[1] after both arrived. i32 (n, 4), n threads per
/// block.
void run_cp_async(const Tensor& from, const Tensor& present, const Tensor& out);
/// A copy that starts `shared_skew` and `global_skew` bytes past a multiple of 16.
void run_misaligned_cp_async(const Tensor& from, int shared_skew, int global_skew);
/// A copy to an address outside shared memory.
void run_cp_async_to_global(const Tensor& from);
/// out[i] (i32) = the pair x[2 i], x[2 i + 1] (f32) in bf16 or f16.
void run_pack(DType dtype, const Tensor& x, const Tensor& out);
/// y (bf16 or f16) = x (f32), rounded one by one.
void run_round(const Tensor& x, const Tensor& y);
/// y (f32) = x (f16).
void run_widen(const Tensor& x, const Tensor& y);
/// y = 2^x, f32.
void run_exp2(const Tensor& x, const Tensor& y);

}  // namespace weft::test
