#include <immintrin.h>

#include "weft/core/cpu/simd.h"

// The row kernels for avx2. They live in a namespace of their own and use no std template: the
// linker would merge an inline function that two files share, and a CPU without this instruction
// set could end up in its body.
namespace weft::simd_avx2 {
#include "weft/core/cpu/simd/lanes_avx2.inc"  // Vec, which all others are written in
#include "weft/core/cpu/simd/table.inc"
}  // namespace weft::simd_avx2

constinit const weft::SimdTable weft::detail::simd_avx2 = weft::simd_avx2::make_table("avx2");
