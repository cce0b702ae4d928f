#include <immintrin.h>

#include "weft/core/cpu/simd.h"

// The row kernels for avx512. They live in a namespace of their own and use no std template: the
// linker would merge an inline function that two files share, and a CPU without this instruction
// set could end up in its body.
namespace weft::simd_avx512 {
#include "weft/core/cpu/simd/lanes_avx512.inc"  // Vec, which all others are written in
#include "weft/core/cpu/simd/table.inc"
}  // namespace weft::simd_avx512

constinit const weft::SimdTable weft::detail::simd_avx512 = weft::simd_avx512::make_table("avx512");
