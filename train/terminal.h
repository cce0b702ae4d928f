#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::train {

/// Columns of the terminal on standard output: the environment variable COLUMNS if it is a positive
/// number, else the width that the terminal reports, else 80.
int terminal_width();

/// A part of a line. If the line is too long, the parts with the highest `drop` are omitted first;
/// parts with 0 are kept.
struct LinePart {
  std::string text;
  int drop = 0;
};
/// The parts that fit into `width` columns, in order. The parts with 0 are cut to that width.
std::string fit_line(const std::vector<LinePart>& parts, int width);

/// The lines of a text, wrapped at `width` - 2 columns. Bytes that are not valid UTF-8, and control
/// characters, become '?'.
std::vector<std::string> sample_lines(const std::string& text, int width);

/// `text` with "\x1b" for each byte of a control character and each that is not UTF-8, which a
/// terminal could obey.
std::string escaped(std::string_view text);
/// Prints a fact about the run, such as "data             1,024 tokens". On a terminal it is
/// wrapped between words; further lines are indented to the column where the text begins. A longer
/// word, such as a path, stays whole and exceeds the width. Both texts are escaped().
void print_fact(const std::string& name, const std::string& text);
/// Its lines: the name in a column of its own, and text up to column `width`. A longer word exceeds
/// it.
std::vector<std::string> fact_lines(const std::string& name, const std::string& text, int width);

/// At most 255 characters of what printf() would print.
[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...);
/// "1,234,567".
std::string with_separators(std::int64_t n);
/// "512 bytes", "1.2 MB", "3.40 GB".
std::string byte_count(double bytes);
/// The same in at most nine characters: "0.5 kB"; "0".
std::string short_byte_count(std::int64_t bytes);

}  // namespace weft::train
