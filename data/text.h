#pragma once
#include <string>
#include <vector>

namespace weft::data {

/// The bytes of one or several text files or pipes, one after the other.
/// Throws Error when there is no path, a file is missing or empty, a path leads to something else,
/// and as io::read_pipe().
std::string read_text(const std::vector<std::string>& paths);

}  // namespace weft::data
