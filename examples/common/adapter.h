#pragma once
#include <optional>
#include <string>

#include "weft/distributed/shard_files.h"
#include "weft/io/json.h"
#include "weft/nn/gpt_config.h"
#include "weft/nn/lora_weights.h"

namespace weft::examples {

/// The adapter in a folder: of PEFT, or the --out folder or a step folder of a run with
/// --lora-rank. `config` is that of its model.
/// Throws Error (Fault::user) if there is none, or it does not fit the model.
nn::LoraWeights read_adapter(const std::string& path, const nn::GptConfig& config);
/// The same, ready to be added to the model's weights; nothing for an empty path.
std::optional<nn::LoraMerger> open_adapter(const std::string& path, const nn::GptConfig& config,
                                           const distributed::ShardFiles& weights);

/// A run that trained an adapter: what its checkpoint holds besides.
struct AdapterRun {
  nn::GptConfig config;
  nn::LoraWeights weights;
  std::string base;                              ///< folder of the model, as --init named it
  std::optional<std::int64_t> base_crc32c = {};  ///< its fingerprint(); older runs have none
};
/// Nothing if the folder holds no checkpoint, or one of a whole model.
std::optional<AdapterRun> find_adapter_run(const std::string& path);
/// Throws Error (Fault::user) where find_adapter_run() gives nothing or throws.
AdapterRun open_adapter_run(const std::string& path);
/// A number that changes with the weights open_weights() finds in `path`; reads at most 1 MiB of
/// each file. Throws Error as open_weights().
std::int64_t fingerprint(const std::string& path);
/// Throws Error (Fault::user) that says how to use it if the state is that of an adapter.
void check_whole_model(const std::string& path, const io::Json& state);

}  // namespace weft::examples
