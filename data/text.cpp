#include "weft/data/text.h"

#include <cstdint>

#include "weft/core/error.h"
#include "weft/data/token_file.h"
#include "weft/io/byte_reader.h"
#include "weft/io/file.h"

namespace weft::data {
namespace {

// A file of a few megabytes may decompress to any size.
constexpr std::int64_t kMostDecompressed = std::int64_t{1} << 32;

std::string read_one(const std::string& path) {
  const io::PathKind kind = io::path_kind(path);
  check(kind != io::PathKind::none, "data: no file '{}'", path);
  check(kind != io::PathKind::folder, "data: '{}' is a folder; name the files in it", path);
  check_is_text(path);
  check(kind != io::PathKind::other, "data: '{}' must be a file or a pipe, got a device", path);
  std::string text;
  if (kind == io::PathKind::pipe)
    text = io::read_pipe(path);
  else if (io::ByteReader(path).is_compressed())
    text = io::read_decompressed(path, kMostDecompressed);
  else
    text = io::read_file(path);
  check(!text.empty(), "data: '{}' is empty", path);
  return text;
}

}  // namespace

std::string read_text(const std::vector<std::string>& paths) {
  check(!paths.empty(), "data: name at least one text file");
  if (paths.size() == 1) return read_one(paths[0]);
  std::string text;
  for (const std::string& path : paths) text += read_one(path);
  return text;
}

}  // namespace weft::data
