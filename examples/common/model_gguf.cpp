#include "weft/examples/common/model_gguf.h"

#include <optional>
#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/gguf_file.h"
#include "weft/examples/common/folder_json.h"
#include "weft/io/file.h"
#include "weft/tokenizer/vocabulary.h"
#include "weft/train/terminal.h"

namespace weft::examples {
namespace {

/// A number, or a flag, in a file of a folder; nullopt without folder, file or key.
std::optional<io::Json> value_in(const std::string& folder, const char* file, const char* key) {
  if (folder.empty() || !io::exists(folder + file)) return std::nullopt;
  const io::Json json = read_folder_json(folder + file);
  const io::Json* const found = json.find(key);
  return found && !found->is_null() ? std::optional(*found) : std::nullopt;
}

std::optional<std::int32_t> id_in(const std::string& folder, const char* key, std::int64_t vocab) {
  for (const char* const file : {"/generation_config.json", "/config.json"})
    if (const auto id = value_in(folder, file, key); id && id->is_int())
      if (id->as_int() >= 0 && id->as_int() < vocab) return static_cast<std::int32_t>(id->as_int());
  return std::nullopt;
}

bool adds(const std::string& folder, const char* key, bool missing) {
  const auto flag = value_in(folder, "/tokenizer_config.json", key);
  return flag && flag->is_bool() ? flag->as_bool() : missing;
}

io::GgufMetadata tokenizer_metadata(const ModelFolder& m, const std::string& folder,
                                    std::string& differs) {
  constexpr const char* kPrefix = "tokenizer.ggml.";
  io::GgufMetadata out;
  const auto put = [&](const char* key, io::GgufValue v) {
    out.emplace_back(std::string(kPrefix) + key, std::move(v));
  };
  if (m.text.is_bytes() && !folder.empty()) {
    put("model", std::string("no_vocab"));
    return out;
  }
  const tokenizer::Tokenizer& t = *m.text.tokenizer;
  tokenizer::Vocabulary v = tokenizer::vocabulary_of(t, m.config.vocab);
  differs = v.differs;
  put("model", v.model);
  const bool merges = v.model == "gpt2";
  if (merges) put("pre", v.pre);
  put("tokens", std::move(v.tokens));
  std::vector<std::int32_t> types;
  for (const tokenizer::TokenType type : v.types) types.push_back(static_cast<std::int32_t>(type));
  put("token_type", std::move(types));
  merges ? put("merges", std::move(v.merges)) : put("scores", std::move(v.scores));

  const std::optional<std::int32_t> first =
      v.first ? v.first : id_in(folder, "bos_token_id", m.config.vocab);
  std::vector<std::int32_t> ends = end_tokens(folder, t);
  std::erase_if(ends, [&](std::int32_t id) { return id >= m.config.vocab; });
  const auto put_id = [&](const char* key, std::optional<std::int32_t> id) {
    if (id) put(key, static_cast<std::uint32_t>(*id));
  };
  put_id("bos_token_id", first);
  if (v.last || !ends.empty()) put_id("eos_token_id", v.last ? *v.last : ends[0]);
  put_id("unknown_token_id", v.unknown);
  put_id("padding_token_id", id_in(folder, "pad_token_id", m.config.vocab));
  put("add_bos_token", first && (v.first || adds(folder, "add_bos_token", false)));
  put("add_eos_token", v.last.has_value());
  if (!merges) {
    put("add_space_prefix", v.space_prefix);
    put("remove_extra_whitespaces", false);
  }
  if (const std::string chat = folder.empty() ? "" : chat_template_in(folder); !chat.empty())
    out.emplace_back("tokenizer.chat_template", chat);
  return out;
}

}  // namespace

void write_model_gguf(const std::string& path, const ModelFolder& model, const std::string& folder,
                      const ModelGgufOptions& options) {
  std::string differs;
  distributed::save_gguf(
      path, model.config, model.files,
      {.family = options.family,
       .type = value_of(distributed::kGgufTypeWords, options.type, "--gguf-type:"),
       .tokenizer = tokenizer_metadata(model, folder, differs)});
  if (!differs.empty())
    train::print_fact("warning", "llama.cpp may give some texts other ids: " + differs);
}

}  // namespace weft::examples
