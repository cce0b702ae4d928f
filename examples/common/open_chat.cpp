#include "weft/examples/common/open_chat.h"

#include <optional>

#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/io/json.h"

namespace weft::examples {
namespace {

// A template, or a list of {name, template}, of which the first counts.
std::string template_in(const std::string& folder) {
  const std::string alone = folder + "/chat_template.jinja",
                    config = folder + "/tokenizer_config.json";
  if (io::exists(alone)) return io::read_file(alone);
  if (!io::exists(config)) return "";
  const io::Json json = io::Json::parse(io::read_file(config), config);
  const io::Json* found = json.find("chat_template");
  if (found && found->is_array() && !found->items().empty())
    found = found->items()[0].find("template");
  return found && found->is_string() ? found->as_string() : "";
}

}  // namespace

tokenizer::ChatFormat open_chat(const std::string& name, const std::string& folder,
                                const tokenizer::Tokenizer& t) {
  if (name != "auto") return tokenizer::chat_format(name);
  const std::string text = folder.empty() ? "" : template_in(folder);
  const auto format = text.empty() ? tokenizer::recognise_chat(t)
                                   : tokenizer::recognise_chat(std::string_view(text));
  check(format.has_value(),
        "--template: {} is of no known chat format; name chatml, llama3, mistral, llama2 or "
        "deepseek",
        text.empty() ? "the tokenizer" : "the chat template in the folder");
  return *format;
}

}  // namespace weft::examples
