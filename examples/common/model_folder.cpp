#include "weft/examples/common/model_folder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "weft/core/error.h"
#include "weft/examples/common/adapter.h"
#include "weft/examples/common/check_weights.h"
#include "weft/examples/common/folder_json.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/io/checkpoint.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/nn/fp8.h"
#include "weft/nn/init.h"
#include "weft/tokenizer/tokenizer.h"

namespace weft::examples {
namespace {

ModelFolder open_run(const std::string& path) {
  std::optional<io::Checkpoint> found;
  if (io::exists(path + "/state.json"))
    found = io::open_checkpoint(path);
  else
    found = io::find_checkpoint(path);
  check(found.has_value(), "'{}': holds neither a checkpoint nor a config.json", path);
  const io::Json state = io::Json::parse(found->state(), found->folder + "/state.json");
  check_whole_model(path, state);
  ModelFolder m{config_from_json(state.at("model")),
                distributed::ShardFiles(found->shards("model")), open_text_tokenizer(*found, state),
                ""};
  if (!m.text.is_bytes()) m.tokenizer = found->folder + "/" + m.text.name;
  return m;
}

// The ids in a JSON file: a number, a list of them, or null.
std::vector<std::int32_t> ids_in(const std::string& file) {
  if (!io::exists(file)) return {};
  const io::Json json = read_folder_json(file);
  const io::Json* const found = json.find("eos_token_id");
  if (!found || found->is_null()) return {};
  std::vector<std::int32_t> ids;
  const auto add = [&](const io::Json& id) {
    check(id.is_int() && id.as_int() >= 0 && id.as_int() <= INT32_MAX,
          "{}: eos_token_id must be a token or a list of them, got {}", file, id.dump());
    ids.push_back(static_cast<std::int32_t>(id.as_int()));
  };
  if (!found->is_array())
    add(*found);
  else
    for (const io::Json& id : found->items()) add(id);
  return ids;
}

nn::Gpt on_meta(const nn::GptConfig& config) {
  const nn::DeviceScope scope(kMeta);
  return nn::Gpt(config);
}

}  // namespace

// Tables and caches get the length that is needed, not the model's maximum: that number comes from
// a file and may be anything.
nn::Gpt load_model(const nn::GptConfig& config, const distributed::ShardFiles& files,
                   std::int64_t tokens, const std::string& adapter) {
  const std::optional<nn::LoraMerger> merger = open_adapter(adapter, config, files);
  nn::GptConfig c = config;
  const std::int64_t seq = std::clamp(tokens + c.mtp.depths, c.mtp.depths + 1, c.seq);
  if (c.position_kind() != nn::Positions::learned) c.seq = seq;  // those have weights for each
  nn::Gpt model = on_meta(c);
  nn::to_empty(model, kCpu);
  const StateDict own = model.state_dict();
  StateDict others;  // other names of tied tensors
  for (const std::string& name : files.names())
    if (const auto it = own.find(name); it != own.end())
      files.read_into(name, distributed::ShardSlice::of(it->second.shape()), it->second);
    else if (!nn::is_fp8_state(name))
      others[name] = files.whole(name);
  if (!others.empty()) model.load_state_dict(others, false);
  if (merger)
    for (const NamedTensor& p : model.named_parameters()) merger->add_to(p.name, 0, p.tensor);
  model.config.seq = seq;
  model.eval();
  return model;
}

void check_tokens(std::span<const std::int32_t> tokens, std::int64_t vocab) {
  for (const std::int32_t token : tokens)
    check(token < vocab,
          "--tokenizer: gives the token {}, and the model has {}: it is another model's", token,
          vocab);
}

std::vector<std::int32_t> end_tokens(const std::string& folder, const tokenizer::Tokenizer& t) {
  if (!folder.empty())
    for (const char* file : {"/generation_config.json", "/config.json"})
      if (std::vector<std::int32_t> ids = ids_in(folder + file); !ids.empty()) return ids;
  std::vector<std::int32_t> ids;
  for (const char* text : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
    if (const auto id = t.find(text)) ids.push_back(*id);
  return ids;
}

ModelFolder open_hf_model(const std::string& path) {
  distributed::HfFolder folder = distributed::open_hf_folder(path);
  ModelFolder m{folder.config, std::move(folder.files), open_text_tokenizer("bytes"), ""};
  if (holds_tokenizer(path)) {
    m.text = open_text_tokenizer(path);
    m.tokenizer = tokenizer::file_of(path);
  }
  return m;
}

ModelFolder open_model_folder(const std::string& path) {
  check(io::is_directory(path), "'{}': is not a folder", path);
  try {
    ModelFolder m = distributed::is_hf_folder(path) ? open_hf_model(path) : open_run(path);
    check_weights(m.config, m.files);
    return m;
  } catch (const Error& e) {
    throw Error(e.what(), Fault::user);
  }
}

}  // namespace weft::examples
