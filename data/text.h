#pragma once
#include <string>
#include <vector>

namespace weft::data {

/// The concatenated bytes of one or several text files or pipes; gzip and zstd files are
/// decompressed, to at most 4 GiB each.
/// Throws Error when there is no path, a file is missing or empty, a path is neither a file nor a
/// pipe or has the name of a token file, and where io::read_pipe() and io::ByteReader do.
std::string read_text(const std::vector<std::string>& paths);

}  // namespace weft::data
