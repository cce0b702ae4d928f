#include "weft/core/pattern.h"

#include <array>
#include <locale>
#include <numeric>
#include <regex>

#include "weft/core/error.h"

namespace weft {
namespace {

// libstdc++ fills the character tables of a locale at first use without a lock (GCC bug 77704).
// This function fills them once beforehand.
bool fill_tables() {
  const auto& facet = std::use_facet<std::ctype<char>>(std::locale());
  std::array<char, 256> all, out;
  std::iota(all.begin(), all.end(), '\0');
  facet.widen(all.data(), all.data() + all.size(), out.data());
  facet.narrow(all.data(), all.data() + all.size(), '\0', out.data());
  return true;
}

}  // namespace

struct Pattern::Compiled {
  std::regex regex;
};

Pattern::Pattern(const char* op, const std::string& text) {
  static const bool filled = fill_tables();
  static_cast<void>(filled);
  try {
    compiled_ = std::make_shared<const Compiled>(
        std::regex(text, std::regex::ECMAScript | std::regex::optimize));
  } catch (const std::regex_error&) {
    throw Error(message("{}: pattern \"{}\" is not a regular expression", op, text));
  }
}

bool Pattern::matches(const std::string& name) const {
  return std::regex_match(name, compiled_->regex);
}

bool Pattern::is_found_in(const std::string& name) const {
  return std::regex_search(name, compiled_->regex);
}

}  // namespace weft
