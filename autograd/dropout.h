#pragma once
#include "weft/core/random.h"
#include "weft/core/tensor.h"

namespace weft {

/// y = x / (1 - p) where element i is kept, 0 where it is dropped (with probability p): the
/// expected value of y is x. Element i (row-major) is dropped iff
/// uniform_from_bits(random_bits(key, i)) < p, so a shard that starts at global element f draws its
/// part of the whole mask with key.first = f. The mask is not stored; backward draws it again. p =
/// 0 or training = false returns x itself; p = 1 gives zeros.
///
/// Shapes  x any shape and strides; result like x
/// Dtypes  f32, f64, bf16, f16
/// Device  cpu, cuda
/// Saves   only the key
/// Throws  Error when p is outside [0, 1] or x is not floating
/// Source  Srivastava et al. 2014, "Dropout"; the inverted form
Tensor dropout(const Tensor& x, double p, const RandomKey& key, bool training = true);

}  // namespace weft
