#include "weft/examples/common/folder_json.h"

#include <cstdint>

#include "weft/core/error.h"
#include "weft/io/file.h"

namespace weft::examples {

std::string read_folder_file(const std::string& path) {
  constexpr std::int64_t kMost = std::int64_t{16} << 20;
  const std::int64_t bytes = io::file_size(path);
  check(bytes <= kMost, "'{}': must have at most {} bytes, got {}", path, kMost, bytes);
  return io::read_file(path);
}

io::Json read_folder_json(const std::string& path) {
  const std::string text = read_folder_file(path);
  try {
    return io::Json::parse(text, path);
  } catch (const Error& e) {
    throw Error(e.what(), Fault::user);
  }
}

}  // namespace weft::examples
