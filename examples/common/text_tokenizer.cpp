#include "weft/examples/common/text_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "weft/core/error.h"
#include "weft/io/file.h"

namespace weft::examples {
namespace {

TextTokenizer read_text_tokenizer(const std::string& file, std::string name) {
  TextTokenizer t{nullptr, std::move(name), io::read_file(file)};
  t.tokenizer = tokenizer::read(t.content, file);
  return t;
}

TextTokenizer bytes_tokenizer() {
  return {std::make_shared<tokenizer::ByteTokenizer>(), "bytes", ""};
}

}  // namespace

TextTokenizer open_text_tokenizer(const std::string& path) {
  if (path == "bytes") return bytes_tokenizer();
  check(io::path_kind(path) == io::PathKind::file || io::path_kind(path) == io::PathKind::folder,
        "--tokenizer: must be 'bytes', or a tokenizer's file or folder, got '{}'", path);
  try {
    const std::string file = tokenizer::file_of(path);
    tokenizer::check_size(file);
    // Other programs know what a file holds by its name.
    const std::filesystem::path name = std::filesystem::path(file).filename();
    return read_text_tokenizer(
        file, name == "tekken.json" ? "tekken.json" : "tokenizer" + name.extension().string());
  } catch (const Error& e) {
    throw Error(message("--tokenizer: {}", std::string(e.what())), Fault::user);
  }
}

bool holds_tokenizer(const std::string& folder) {
  try {
    tokenizer::file_of(folder);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TextTokenizer open_text_tokenizer(const io::Checkpoint& checkpoint, const io::Json& state) {
  const io::Json* const name = state.find("tokenizer");
  if (!name || name->as_string() == "bytes") return bytes_tokenizer();
  const std::string& file = name->as_string();
  check_system(
      std::find(checkpoint.files.begin(), checkpoint.files.end(), file) != checkpoint.files.end(),
      "checkpoint: '{}' does not list its tokenizer '{}'", checkpoint.folder, file);
  return read_text_tokenizer(checkpoint.folder + "/" + file, file);
}

data::TokenStream encode_text(const TextTokenizer& t, std::string_view text) {
  return data::TokenStream::of(t.tokenizer->encode(text));
}

double bytes_per_target(const TextTokenizer& t, const data::TokenStream& tokens) {
  if (tokens.size() < 2) return 0;
  constexpr std::int64_t kPart = 1 << 16;
  std::vector<std::int32_t> part;
  double bytes = 0;
  for (std::int64_t first = 1; first < tokens.size(); first += kPart) {
    part.resize(static_cast<std::size_t>(std::min(kPart, tokens.size() - first)));
    tokens.read(first, part);
    for (const std::int32_t token : part)
      if (t.tokenizer->has(token) && !t.tokenizer->is_special(token))
        bytes += static_cast<double>(t.tokenizer->bytes_of(token).size());
  }
  return bytes / static_cast<double>(tokens.size() - 1);
}

}  // namespace weft::examples
