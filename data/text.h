#pragma once
#include <string>
#include <vector>

namespace weft::data {

/// The concatenated bytes of one or several text files or pipes.
/// Throws Error when there is no path, a file is missing or empty, a path is neither a file nor a
/// pipe, and where io::read_pipe() does.
std::string read_text(const std::vector<std::string>& paths);

}  // namespace weft::data
