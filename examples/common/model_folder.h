#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weft/distributed/hf_folder.h"
#include "weft/examples/common/text_tokenizer.h"
#include "weft/nn/gpt.h"
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

/// The model, for texts of at most `tokens` tokens, which may be more than it can take; with the
/// adapter in a folder, if one is named. `files`: those of a ModelFolder, or check_weights()
/// accepted them.
/// Throws Error as open_adapter().
nn::Gpt load_model(const nn::GptConfig& config, const distributed::ShardFiles& files,
                   std::int64_t tokens, const std::string& adapter = {});

/// Throws Error (Fault::user) on a token that a model with a vocabulary of `vocab` does not have.
void check_tokens(std::span<const std::int32_t> tokens, std::int64_t vocab);

/// The tokens that end a text: those that generation_config.json or config.json of a Hugging Face
/// folder names (`eos_token_id`); without them what tokenizers call <|endoftext|>,
/// <|end_of_text|> or </s>. `folder` may be empty or of another kind.
std::vector<std::int32_t> end_tokens(const std::string& folder, const tokenizer::Tokenizer& t);

}  // namespace weft::examples
