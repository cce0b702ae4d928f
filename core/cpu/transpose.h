#pragma once
#include "weft/core/tensor.h"

namespace weft::cpu {

/// Copies source to out, of one shape and dtype, if the axis of stride 1 of one is not that of the
/// other, as in a transpose, and both axes have at least 16 bytes; else returns false. Reads and
/// writes whole cache lines, where a loop along either tensor would fetch a line for each element.
bool copy_transposed(const Tensor& source, const Tensor& out);

}  // namespace weft::cpu
