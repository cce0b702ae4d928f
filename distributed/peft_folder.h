#pragma once
#include <string>

#include "weft/nn/hf.h"
#include "weft/nn/lora_weights.h"

namespace weft::distributed {

/// Whether a folder holds an adapter_config.json.
bool is_peft_folder(const std::string& path);

/// Reads the folder of a LoRA adapter that PEFT wrote: adapter_config.json and
/// adapter_model.safetensors, for a model of this family and configuration.
/// Throws Error (Fault::user) on a setting that is not supported, a tensor that is missing, unknown
/// or of another shape, and a file that is not valid.
nn::LoraWeights read_peft_folder(const std::string& path, const nn::HfFamily& family,
                                 const nn::GptConfig& config);

/// Writes such a folder. `base` is the name or folder of the model, for readers of the file.
/// Throws Error when an adapter has no place in the family's files, and when writing fails.
void save_peft_folder(const std::string& path, const nn::HfFamily& family,
                      const nn::GptConfig& config, const nn::LoraWeights& weights,
                      const std::string& base);

}  // namespace weft::distributed
