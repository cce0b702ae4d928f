#pragma once
#include "weft/core/dtype.h"

namespace weft::cpu {

/// The numbers that the 256 codes of e4m3 or e5m2 stand for.
const float* fp8_values(DType t);

}  // namespace weft::cpu
