#include "weft/examples/common/adapter.h"

#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/hf_folder.h"
#include "weft/distributed/peft_folder.h"
#include "weft/examples/common/gpt_task.h"
#include "weft/io/checkpoint.h"
#include "weft/io/file.h"
#include "weft/io/json_fields.h"
#include "weft/nn/gpt.h"

namespace weft::examples {
namespace {

std::optional<io::Checkpoint> checkpoint_in(const std::string& path) {
  if (io::exists(path + "/state.json")) return io::open_checkpoint(path);
  return io::find_checkpoint(path);
}

}  // namespace

std::optional<AdapterRun> find_adapter_run(const std::string& path) {
  const std::optional<io::Checkpoint> found = checkpoint_in(path);
  if (!found) return std::nullopt;
  const io::Json state = io::Json::parse(found->state(), found->folder + "/state.json");
  const io::Json* const lora = state.find("lora");
  if (!lora) return std::nullopt;
  AdapterRun run{config_from_json(state.at("model")), {}, state.at("base").as_string()};
  if (const io::Json* const crc = state.find("base_crc32c")) run.base_crc32c = crc->as_int();
  io::fields_from_json(*lora, "state.json", run.weights.options);
  run.weights.tensors = distributed::ShardFiles(found->shards("model")).state_dict();
  return run;
}

std::int64_t fingerprint(const std::string& path) {
  return distributed::open_weights(path).fingerprint();
}

void check_whole_model(const std::string& path, const io::Json& state) {
  const io::Json* const base = state.find("base");
  if (state.find("lora") && base)
    throw Error(
        message("'{}': holds an adapter of the model '{}'; name that model, and this "
                "folder with --adapter",
                path, base->as_string()));
}

AdapterRun open_adapter_run(const std::string& path) {
  check(io::is_directory(path), "--adapter: '{}' is not a folder", path);
  std::optional<AdapterRun> run;
  try {
    run = find_adapter_run(path);
  } catch (const Error& e) {
    throw Error(e.what(), Fault::user);
  }
  check(run.has_value(),
        "--adapter: '{}' holds neither an adapter_config.json nor a run with --lora-rank", path);
  return std::move(*run);
}

nn::LoraWeights read_adapter(const std::string& path, const nn::GptConfig& config) {
  return distributed::is_peft_folder(path)
             ? distributed::read_peft_folder(path, nn::hf_family_of(config), config)
             : open_adapter_run(path).weights;
}

std::optional<nn::LoraMerger> open_adapter(const std::string& path, const nn::GptConfig& config,
                                           const distributed::ShardFiles& weights) {
  if (path.empty()) return std::nullopt;
  const nn::DeviceScope on_meta(kMeta);
  if (distributed::is_peft_folder(path))
    return nn::LoraMerger(nn::Gpt(config), read_adapter(path, config));
  AdapterRun run = open_adapter_run(path);
  // The same weights in another file format are other files.
  if (run.base_crc32c && *run.base_crc32c != weights.fingerprint())
    log_line(message("--adapter: '{}' was trained on the files of '{}', and these are others", path,
                     run.base));
  return nn::LoraMerger(nn::Gpt(config), std::move(run.weights));
}

}  // namespace weft::examples
