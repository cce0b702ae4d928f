#pragma once
#include <functional>
#include <string>

#include "weft/distributed/shard_files.h"
#include "weft/nn/hf.h"

namespace weft::distributed {

/// A Hugging Face folder: config.json, and model.safetensors or its shards with their index.
struct HfFolder {
  const nn::HfFamily* family;
  nn::GptConfig config;
  ShardFiles files;  ///< tensors by the names of nn::Gpt
};

/// Whether a folder holds a config.json.
bool is_hf_folder(const std::string& path);

/// Reads config.json and the headers of all files.
/// Throws Error (Fault::user) on a family or a value that is not supported, a missing shard, a
/// tensor that is missing, unknown or of another shape, and a file that is not valid.
HfFolder open_hf_folder(const std::string& path);

/// What its config.json alone describes, MTP layers included, which files of weights may lack.
/// Throws Error (Fault::user) on a family or a value that is not supported.
nn::GptConfig hf_folder_config(const std::string& path);

struct HfSaveOptions {
  std::string family = {};                          ///< empty: the first that can hold the model
  std::int64_t file_bytes = std::int64_t{5} << 30;  ///< more are shared out among several files
  /// Changes the values of a parameter's elements from `first` on before they are written, such as
  /// by an adapter: whole rows.
  std::function<void(const std::string& parameter, std::int64_t first, const Tensor& values)>
      change = {};
};
/// Writes such a folder, and removes the weights of a model that it held before. Reads one tensor
/// at a time; memory: the tensors of one file.
/// Throws Error when no family holds the model, tensors are missing or have no place in the folder,
/// such as those of an adapter, and when writing fails.
void save_hf_folder(const std::string& path, const nn::GptConfig& config, const ShardFiles& files,
                    const HfSaveOptions& options = {});

/// Files of weights to start from: a .safetensors file with the names of nn::Gpt, a Hugging Face
/// folder, the --out folder of a run, or a step folder in it.
ShardFiles open_weights(const std::string& path);

}  // namespace weft::distributed
