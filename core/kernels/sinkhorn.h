#pragma once
#include "weft/core/tensor.h"

namespace weft {

inline constexpr double kSinkhornEps = 1e-8;        // keeps empty rows and columns finite
inline constexpr double kSinkhornTolerance = 1e-4;  // mean change of a column factor per round
inline constexpr std::int64_t kSinkhornParts = 32;  // chunks of rows whose column sums are added

/// out (T, E) = exp(logits), with rows and columns scaled in turn until they sum to 1 / T and 1 / E
/// (T without padding), for at most `rounds` rounds. Rows of padding are 0. out and the scratch are
/// f64 for f64 logits, else f32: rows (T), columns (E), partials (kSinkhornParts, E).
using SinkhornKernel = void(const Tensor& logits, const Tensor& padding, std::int64_t rounds,
                            const Tensor& rows, const Tensor& columns, const Tensor& partials,
                            const Tensor& out);

namespace cpu {
SinkhornKernel sinkhorn;
}  // namespace cpu
namespace cuda {
SinkhornKernel sinkhorn;
}  // namespace cuda

}  // namespace weft
