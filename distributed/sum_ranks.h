#pragma once
#include <cstdint>
#include <span>

#include "weft/core/dtype.h"
#include "weft/distributed/operation.h"

namespace weft::distributed {

/// out[i] <- parts[0][i] + parts[1][i] + ... (or max, min), in this order. All backends except NCCL
/// reduce with this function, so they give the same bits. bf16 and f16 are added in f32 and rounded
/// once. `out` may be one of the parts. Throws Error on a dtype other than f32, f64, bf16, f16,
/// i32, i64, u8.
void combine_ranks(DType dtype, Reduce reduce, void* out, std::span<const void* const> parts,
                   std::int64_t count);

}  // namespace weft::distributed
