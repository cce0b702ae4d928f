#pragma once
#include "weft/core/tensor.h"

namespace weft::cpu {

/// Copies source to out, of one shape, if they have one dtype and neighbours in the memory of one
/// are far apart in the other, as in a transpose, on sides of 16 bytes or more; else returns false.
/// Memory is read and written in whole lines of the cache, where a loop along either tensor would
/// fetch a line for each element.
bool copy_transposed(const Tensor& source, const Tensor& out);

}  // namespace weft::cpu
