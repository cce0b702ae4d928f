#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "weft/core/memory_trace.h"

namespace weft::io {

/// A vertical line in a plot of memory, at an element of its course.
struct MemoryMark {
  std::string label;
  std::int64_t event = 0;
};

/// Draws live bytes by category, stacked, over the allocations and frees of a step, with its marks
/// and its peak. Long courses are thinned so that the peak stays.
/// Throws Error if the file cannot be written.
void write_memory_svg(const std::vector<LiveBytes>& course, const std::vector<MemoryMark>& marks,
                      const std::string& path, const std::string& title);

}  // namespace weft::io
