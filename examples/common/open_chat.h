#pragma once
#include <string>

#include "weft/tokenizer/chat.h"

namespace weft::examples {

/// The chat format that `name` says; with "auto" that of the template in a folder
/// (chat_template.jinja, or chat_template in tokenizer_config.json), and without one that whose
/// marks are tokens. Throws Error (Fault::user) if none is known.
tokenizer::ChatFormat open_chat(const std::string& name, const std::string& folder,
                                const tokenizer::Tokenizer& tokenizer);

}  // namespace weft::examples
