#pragma once
#include <string>
#include <vector>

namespace weft::data {

/// The bytes of one or several text files, one after the other.
/// Throws Error when there is no path, or a file is missing or empty.
std::string read_text(const std::vector<std::string>& paths);

}  // namespace weft::data
