#pragma once
#include <regex>
#include <string>

namespace weft {

/// A regular expression of names, which ranks that are threads may make at the same time. libstdc++
/// fills the character tables of a locale where they are first used, without a lock (GCC bug
/// 77704); here that is done once, before. Throws std::regex_error on what is none.
std::regex compile_pattern(const std::string& pattern);

}  // namespace weft
