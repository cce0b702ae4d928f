#pragma once
#include <vector>

#include "weft/core/tensor.h"
#include "weft/tests/generated/rng.h"

namespace weft::generated {

/// How the elements of a tensor may lie in memory.
enum class Layout : std::uint8_t {
  contiguous,
  transposed,       ///< the last axis is the outermost in memory
  exchanged,        ///< the first two axes are exchanged in memory, as in sequence-first storage
  every_second,     ///< stride 2 in the last axis
  gaps,             ///< rows are pieces of longer rows
  offset,           ///< starts at an odd place of its storage
  broadcast_first,  ///< stride 0 on the first axis longer than 1
  broadcast_last,   ///< stride 0 on the last axis longer than 1
  any_one,          ///< axes of length 1 have strides that mean nothing
  reversed,         ///< negative stride in the last axis
};
inline constexpr int kLayouts = 10;
const char* name(Layout layout);

/// The axis that a broadcast layout repeats; -1: none, or another layout.
int repeated_axis(const Shape& shape, Layout layout);
/// Would tensor_in() give something else than a contiguous tensor?
bool changes(const Shape& shape, Layout layout);
/// `values` (row-major) as a tensor with that layout. What lies between its elements is no number.
/// Along repeated_axis() the values must not vary.
Tensor tensor_in(Layout layout, const Shape& shape, const std::vector<double>& values, DType dtype,
                 Device device = kCpu);
/// Makes the values constant along the axis that the layout repeats.
void repeat_values(Layout layout, const Shape& shape, std::vector<double>& values);

/// All elements in row-major order, by strides, wherever they lie.
std::vector<double> values_of(const Tensor& t);

}  // namespace weft::generated
