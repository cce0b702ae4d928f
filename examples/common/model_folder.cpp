#include "weft/examples/common/model_folder.h"

#include <optional>
#include <utility>

#include "weft/core/error.h"
#include "weft/examples/common/check_weights.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/io/checkpoint.h"
#include "weft/io/file.h"
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
  ModelFolder m{config_from_json(state.at("model")),
                distributed::ShardFiles(found->shards("model")), open_text_tokenizer(*found, state),
                ""};
  if (!m.text.is_bytes()) m.tokenizer = found->folder + "/" + m.text.name;
  return m;
}

}  // namespace

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
