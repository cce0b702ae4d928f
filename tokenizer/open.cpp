#include <filesystem>
#include <fstream>

#include "weft/core/error.h"
#include "weft/io/json.h"
#include "weft/tokenizer/read.h"

namespace weft::tokenizer {
namespace {

// The largest published file, Gemma's, has 33 MB and 1.8 million JSON values.
constexpr std::uintmax_t kMostBytes = std::uintmax_t{64} << 20;
constexpr io::JsonLimits kJsonLimits{.depth = 32, .values = 3'000'000};

std::string content_of(const std::string& path) {
  check_size(path);
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  std::string content(error ? 0 : size, '\0');
  file.read(content.data(), static_cast<std::streamsize>(size));
  check_system(file.gcount() == static_cast<std::streamsize>(size), "{}: cannot be read", path);
  return content;
}

BpeParts parts_of(std::string_view content, const std::string& what, const OpenOptions& options) {
  const std::size_t first = content.find_first_not_of(" \t\r\n");
  check_system(first != std::string_view::npos, "{}: is empty", what);
  if (content[first] == '{') {
    const io::Json file = io::Json::parse(content, what, kJsonLimits);
    return file.find("config") && file.find("vocab") ? read_tekken(file, what)
                                                     : read_tokenizer_json(file, what);
  }
  // A .model begins with its first piece, field 1; a .tiktoken file is lines of text.
  return content[0] == '\n' ? read_sentencepiece(content, what)
                            : read_tiktoken(content, what, options);
}

}  // namespace

void check_size(const std::string& file) {
  std::error_code error;
  check(std::filesystem::is_regular_file(file, error), "{}: is no tokenizer file", file);
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  check_system(!error && size <= kMostBytes, "{}: a tokenizer has at most {} bytes, got {}", file,
               kMostBytes, size);
}

std::string file_of(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) return path;
  for (const char* const name : {"tokenizer.json", "tekken.json", "tokenizer.model"}) {
    const std::string file = path + "/" + name;
    if (std::filesystem::exists(file, error)) return file;
  }
  check(false, "{}: has no tokenizer.json, tekken.json or tokenizer.model", path);
  return {};
}

std::unique_ptr<Tokenizer> read(std::string_view content, const std::string& what,
                                const OpenOptions& options) {
  return std::make_unique<BpeTokenizer>(parts_of(content, what, options), what);
}

std::unique_ptr<Tokenizer> open(const std::string& path, const OpenOptions& options) {
  if (path == "bytes") return std::make_unique<ByteTokenizer>();
  const std::string file = file_of(path);
  return read(content_of(file), file, options);
}

}  // namespace weft::tokenizer
