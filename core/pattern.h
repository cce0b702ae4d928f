#pragma once
#include <regex>
#include <string>

namespace weft {

/// Compiles a regular expression for names; ranks that are threads may call it concurrently.
/// libstdc++ fills the character tables of a locale at first use without a lock (GCC bug 77704);
/// this function fills them once beforehand.
/// Throws std::regex_error on an invalid pattern.
std::regex compile_pattern(const std::string& pattern);

}  // namespace weft
