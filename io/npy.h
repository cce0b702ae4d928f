#pragma once
#include <string>

#include "weft/core/tensor.h"

namespace weft::io {

/// Reads a NumPy array: format 1, 2 or 3, C or Fortran order, little-endian '<f2' '<f4' '<f8' '<i4'
/// '<i8' '|u1' '|b1'; '|i1' '<i2' '<u2' as i32 and '<u4' as i64.
/// Throws Error (Fault::system) naming the file and the unsupported property.
Tensor load_npy(const std::string& path);

/// Writes format 1 in C order. bf16 and fp8 have no NumPy dtype: cast them first.
/// Throws Error on those, on a null or meta tensor, and when writing fails.
void save_npy(const std::string& path, const Tensor& t);

}  // namespace weft::io
