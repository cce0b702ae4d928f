#include "weft/train/unknown_flag.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft::train {
namespace {

/// Levenshtein distance, one row of the table at a time.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t corner = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, corner + (a[i - 1] != b[j - 1])});
      corner = above;
    }
  }
  return row[b.size()];
}

}  // namespace

void throw_unknown_flag(const std::string& given, const std::vector<std::string>& known,
                        const char* list) {
  // No known flag is that long, and the time below grows with the length.
  const std::string name = given.substr(0, std::min<std::size_t>(given.find('='), 64));
  const auto nearest = std::min_element(known.begin(), known.end(), [&](const auto& a, auto& b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
  throw Error(message("unknown flag '{}'; the nearest is {} ({} lists all)", name, *nearest, list));
}

}  // namespace weft::train
