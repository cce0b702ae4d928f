#include "weft/data/text.h"

#include "weft/core/error.h"
#include "weft/io/file.h"

namespace weft::data {

std::string read_text(const std::vector<std::string>& paths) {
  check(!paths.empty(), "data: name at least one text file");
  std::string text;
  for (const std::string& path : paths) {
    check(io::exists(path), "data: no file '{}'", path);
    check(!io::is_directory(path), "data: '{}' is a folder; name the files in it", path);
    const std::string part = io::read_file(path);
    check(!part.empty(), "data: '{}' is empty", path);
    text += part;
  }
  return text;
}

}  // namespace weft::data
