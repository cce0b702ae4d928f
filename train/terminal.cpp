#include "weft/train/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "weft/io/json.h"

namespace weft::train {

int terminal_width() {
  const char* const columns = std::getenv("COLUMNS");
  if (const int given = columns ? std::atoi(columns) : 0; given > 0) return given;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string fit_line(const std::vector<LinePart>& parts, int width) {
  int highest = 0;
  for (const LinePart& p : parts) highest = std::max(highest, p.drop);
  for (;; --highest) {
    std::string line;
    for (const LinePart& p : parts)
      if (p.drop <= highest) line += p.text;
    const auto room = static_cast<std::size_t>(std::max(width, 0));
    if (line.size() <= room) return line;
    if (highest == 0) return line.substr(0, room);
  }
}

std::vector<std::string> sample_lines(const std::string& text, int width) {
  std::string clean = text;
  for (char& c : clean)
    if (c != '\n' && (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)) c = '?';
  // U+0080 to U+009F: control characters, some of which terminals obey.
  for (std::size_t at = 0; (at = clean.find('\xc2', at)) != std::string::npos; ++at)
    if (at + 1 < clean.size() && static_cast<unsigned char>(clean[at + 1]) < 0xa0)
      clean.replace(at, 2, "?");
  for (std::size_t at; (at = io::find_invalid_utf8(clean)) != std::string::npos;) clean[at] = '?';
  std::vector<std::string> lines(1);
  int columns = 0;
  for (const char c : clean) {
    const bool begins_letter = (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    if (c == '\n' || (begins_letter && columns >= std::max(width - 2, 1))) {
      lines.emplace_back();
      columns = 0;
    }
    if (c == '\n') continue;
    lines.back() += c;
    columns += begins_letter;
  }
  return lines;
}

std::string escaped(std::string_view text) {
  std::string out;
  const auto escape = [&](char c) {
    out += formatted("\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
  };
  while (!text.empty()) {
    const std::size_t valid = std::min(io::find_invalid_utf8(text), text.size());
    for (std::size_t i = 0; i < valid; ++i) {
      const auto c = static_cast<unsigned char>(text[i]);
      // U+0080 to U+009F are control characters too.
      const bool is_long = c == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0;
      if (is_long || c < 0x20 || c == 0x7f)
        escape(text[i]);
      else
        out += text[i];
      if (is_long) escape(text[++i]);
    }
    if (valid < text.size()) escape(text[valid]);
    text.remove_prefix(std::min(valid + 1, text.size()));
  }
  return out;
}

std::vector<std::string> fact_lines(const std::string& name, const std::string& raw, int width) {
  constexpr std::size_t kIndent = 17;
  const std::string text = escaped(raw);
  std::vector<std::string> lines{escaped(name)};
  lines[0].resize(std::max(kIndent, lines[0].size() + 1), ' ');
  bool begins_line = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!begins_line) {
      if (lines.back().size() + 1 + word.size() > static_cast<std::size_t>(std::max(width, 0)))
        lines.emplace_back(kIndent, ' ');
      else
        lines.back() += ' ';
    }
    lines.back() += word;
    begins_line = false;
    at = end + 1;
  }
  return lines;
}

void print_fact(const std::string& name, const std::string& text) {
  const int width = isatty(STDOUT_FILENO) ? terminal_width() - 1 : INT_MAX;
  for (const std::string& line : fact_lines(name, text, width)) std::printf("%s\n", line.c_str());
}

std::string formatted(const char* format, ...) {
  char text[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

std::string with_separators(std::int64_t n) {
  std::string digits = std::to_string(n);
  const std::size_t first = n < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string byte_count(double bytes) {
  if (bytes < 1e6) return with_separators(static_cast<std::int64_t>(bytes)) + " bytes";
  return bytes < 1e9 ? formatted("%.1f MB", bytes * 1e-6) : formatted("%.2f GB", bytes * 1e-9);
}

std::string short_byte_count(std::int64_t bytes) {
  const auto n = static_cast<double>(bytes);
  return bytes == 0 ? "0" : bytes < 1'000'000 ? formatted("%.1f kB", n * 1e-3) : byte_count(n);
}

}  // namespace weft::train
