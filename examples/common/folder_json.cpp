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

// A template, or a list of {name, template}, of which that named "default" counts, else the first.
std::string chat_template_in(const std::string& folder) {
  const std::string alone = folder + "/chat_template.jinja",
                    config = folder + "/tokenizer_config.json";
  if (io::exists(alone)) return read_folder_file(alone);
  if (!io::exists(config)) return "";
  const io::Json json = read_folder_json(config);
  const io::Json* found = json.find("chat_template");
  if (found && found->is_array() && !found->items().empty()) {
    const io::Json* chosen = &found->items()[0];
    for (const io::Json& item : found->items())
      if (const io::Json* const n = item.find("name");
          n && n->is_string() && n->as_string() == "default")
        chosen = &item;
    found = chosen->find("template");
  }
  return found && found->is_string() ? found->as_string() : "";
}

}  // namespace weft::examples
