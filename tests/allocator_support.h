#pragma once
// Blocks of the allocator, as tensors of bytes.
#include <cstdint>

#include "weft/core/tensor.h"

namespace weft::allocator_test {

inline constexpr std::int64_t kMiB = 1 << 20;

inline Tensor block(std::int64_t bytes) { return Tensor::empty({bytes}, DType::u8); }

}  // namespace weft::allocator_test
