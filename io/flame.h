#pragma once
#include <string>
#include <vector>

#include "weft/core/profile.h"

namespace weft::io {

/// Draws a profile as a flame graph in a self-contained SVG: the width of a box is its share of
/// the time, and the boxes above it are what it called: phase, parts of the model, op, kernel.
/// Pointing at a box shows its name, calls and time.
/// Throws Error when the file cannot be written.
/// Source  Gregg 2016, "The Flame Graph", Communications of the ACM 59(6)
void write_flame_svg(const std::vector<Profiler::Entry>& entries, const std::string& path,
                     const std::string& title);

}  // namespace weft::io
