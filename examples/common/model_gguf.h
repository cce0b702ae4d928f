#pragma once
#include <string>

#include "weft/examples/common/model_folder.h"

namespace weft::examples {

struct ModelGgufOptions {
  std::string family;  ///< see nn::gguf_model()
  std::string type;    ///< a word of distributed::kGgufTypeWords
};

/// Writes a model with its tokenizer as a GGUF file. `folder` is the Hugging Face folder that it
/// comes from, for marks and chat template; or empty: that of a run. A Hugging Face folder without
/// a tokenizer gives a file without one, for programs that hand over tokens.
/// Throws Error as distributed::save_gguf() and tokenizer::vocabulary_of().
void write_model_gguf(const std::string& path, const ModelFolder& model, const std::string& folder,
                      const ModelGgufOptions& options);

}  // namespace weft::examples
