#pragma once
#include <vector>

#include "weft/core/tensor.h"
#include "weft/tests/generated/rng.h"

namespace weft::generated {

/// Memory layouts of a tensor.
enum class Layout : std::uint8_t {
  contiguous,
  transposed,       ///< the last axis is the outermost in memory
  exchanged,        ///< the first two axes are swapped in memory, as in sequence-first storage
  every_second,     ///< stride 2 in the last axis
  gaps,             ///< rows are parts of longer rows
  offset,           ///< starts at an odd offset in its storage
  broadcast_first,  ///< stride 0 on the first axis longer than 1
  broadcast_last,   ///< stride 0 on the last axis longer than 1
  any_one,          ///< axes of length 1 have arbitrary strides
  reversed,         ///< negative stride in the last axis
};
inline constexpr int kLayouts = 10;
const char* name(Layout layout);

/// The axis that a broadcast layout repeats; -1 if there is none or for another layout.
int repeated_axis(const Shape& shape, Layout layout);
/// Whether tensor_in() differs from a contiguous tensor.
bool changes(const Shape& shape, Layout layout);
/// `values` (row-major) as a tensor with that layout. Memory between its elements holds NaN. The
/// values must be constant along repeated_axis().
Tensor tensor_in(Layout layout, const Shape& shape, const std::vector<double>& values, DType dtype,
                 Device device = kCpu);
/// Makes the values constant along the axis that the layout repeats.
void repeat_values(Layout layout, const Shape& shape, std::vector<double>& values);

/// All elements in row-major order, for any strides.
std::vector<double> values_of(const Tensor& t);

}  // namespace weft::generated
