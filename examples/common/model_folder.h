#pragma once
#include <string>

#include "weft/distributed/hf_folder.h"
#include "weft/examples/common/text_tokenizer.h"
#include "weft/nn/gpt_config.h"

namespace weft::examples {

/// A model on disk: a Hugging Face folder, the --out folder of a run, or a step folder in it.
struct ModelFolder {
  nn::GptConfig config;
  distributed::ShardFiles files;
  TextTokenizer text;     ///< that of bytes if the folder carries none
  std::string tokenizer;  ///< the path of its file; empty for bytes
};

/// Opens one, and checks that its files hold all tensors of the model.
/// Throws Error (Fault::user) if there is none, or it cannot be used.
ModelFolder open_model_folder(const std::string& path);
/// The same for a Hugging Face folder only.
ModelFolder open_hf_model(const std::string& path);

}  // namespace weft::examples
