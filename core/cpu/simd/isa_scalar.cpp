#include "weft/core/cpu/simd.h"

// The row kernels for plain C++. They live in a namespace of their own and use no std template: the
// linker would merge an inline function that two files share, and a CPU without this instruction
// set could end up in its body.
namespace weft::simd_scalar {
#include "weft/core/cpu/simd/lanes_scalar.inc"  // Vec, which all others are written in
#include "weft/core/cpu/simd/table.inc"
}  // namespace weft::simd_scalar

constinit const weft::SimdTable weft::detail::simd_scalar = weft::simd_scalar::make_table("scalar");
