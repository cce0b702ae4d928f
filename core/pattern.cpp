#include "weft/core/pattern.h"

#include <array>
#include <locale>
#include <numeric>

namespace weft {
namespace {

bool fill_tables() {
  const auto& facet = std::use_facet<std::ctype<char>>(std::locale());
  std::array<char, 256> all, out;
  std::iota(all.begin(), all.end(), '\0');
  facet.widen(all.data(), all.data() + all.size(), out.data());
  facet.narrow(all.data(), all.data() + all.size(), '\0', out.data());
  return true;
}

}  // namespace

std::regex compile_pattern(const std::string& pattern) {
  static const bool filled = fill_tables();
  static_cast<void>(filled);
  return std::regex(pattern, std::regex::ECMAScript | std::regex::optimize);
}

}  // namespace weft
