#include <immintrin.h>

#include "weft/core/cpu/simd.h"

// The row kernels for avx512. Everything below lives in a namespace of its own and uses no std
// template: an inline function that two files share would be merged by the linker, and a CPU
// without this instruction set could end up in its body.
// The order of these files matters.
// clang-format off
namespace weft::simd_avx512 {
#include "weft/core/cpu/simd/lanes_avx512.inc"
#include "weft/core/cpu/simd/vec.inc"
#include "weft/core/cpu/simd/unary.inc"
#include "weft/core/cpu/simd/softmax.inc"
#include "weft/core/cpu/simd/norm.inc"
#include "weft/core/cpu/simd/swiglu.inc"
#include "weft/core/cpu/simd/conv.inc"
#include "weft/core/cpu/simd/cross_entropy.inc"
#include "weft/core/cpu/simd/optimizer.inc"
#include "weft/core/cpu/simd/random.inc"
#include "weft/core/cpu/simd/rope.inc"
#include "weft/core/cpu/simd/sums.inc"
#include "weft/core/cpu/simd/top.inc"
#include "weft/core/cpu/simd/product.inc"
#include "weft/core/cpu/simd/attention.inc"
#include "weft/core/cpu/simd/table.inc"
}  // namespace weft::simd_avx512
// clang-format on

constinit const weft::SimdTable weft::detail::simd_avx512 = weft::simd_avx512::make_table("avx512");
