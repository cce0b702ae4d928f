#pragma once
#include "weft/core/tensor.h"

// The absolute maximum of each row, from the op that produces a tensor to the FP8 products that
// quantise it, which need no pass over the tensor then. Each thread keeps those of the last few
// tensors until its outermost fp8::Autocast ends.
namespace weft::fp8 {

/// Where a kernel that writes y also writes the largest |y| of each row: (rows) f32. Null where
/// nothing could use them: without an Autocast whose scales come from magnitudes, or unless y will
/// be recorded.
Tensor row_amax_for(const Tensor& y, bool recorded);
/// Remembers them for y, which has been recorded; `amax` may be null.
void remember_row_amax(const Tensor& y, const Tensor& amax);
/// Those of x; null if they are not known or x was written since.
Tensor row_amax_of(const Tensor& x);

}  // namespace weft::fp8
