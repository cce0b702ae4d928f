#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace weft::train {

/// Columns of the terminal on standard output: the environment variable COLUMNS where it is a
/// number above 0, else what the terminal says, else 80.
int terminal_width();

/// A part of a line. Where the line is too long, the parts with the highest `drop` are left out
/// first; a part with 0 stays.
struct LinePart {
  std::string text;
  int drop = 0;
};
/// The parts that fit into `width` columns, in their order. What still does not fit is cut.
std::string fit_line(const std::vector<LinePart>& parts, int width);

/// The lines of a text, cut to `width` - 2 columns; bytes that are no UTF-8, and control
/// characters, are '?'.
std::vector<std::string> sample_lines(const std::string& text, int width);

/// "1,234,567".
std::string with_separators(std::int64_t n);
/// "512 bytes", "1.2 MB", "3.4 GB".
std::string byte_count(double bytes);

}  // namespace weft::train
