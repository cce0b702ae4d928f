#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "weft/data/token_file.h"
#include "weft/io/checkpoint.h"
#include "weft/io/json.h"
#include "weft/tokenizer/tokenizer.h"

namespace weft::examples {

/// The tokenizer of a run, and the file that its checkpoints carry.
struct TextTokenizer {
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
  std::string name;     ///< "bytes", or the name of the file in a checkpoint
  std::string content;  ///< of that file
  bool is_bytes() const { return name == "bytes"; }
};

/// --tokenizer: "bytes", a file or a folder.
/// Throws Error (Fault::user) if there is none, or it cannot be used.
TextTokenizer open_text_tokenizer(const std::string& path);
/// Whether a folder holds a tokenizer that open_text_tokenizer() can read.
bool holds_tokenizer(const std::string& folder);
/// The tokenizer that a checkpoint carries; that of bytes for older ones.
TextTokenizer open_text_tokenizer(const io::Checkpoint& checkpoint, const io::Json& state);

/// The tokens of a text, whose added tokens are ordinary letters.
data::TokenStream encode_text(const TextTokenizer& t, std::string_view text);
/// Mean number of bytes that a token of the stream stands for, the first one left out, which is no
/// target; special tokens stand for none. 0 without tokens.
double bytes_per_target(const TextTokenizer& t, const data::TokenStream& tokens);

}  // namespace weft::examples
