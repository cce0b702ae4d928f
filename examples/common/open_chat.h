#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "weft/tokenizer/chat.h"

namespace weft::examples {

/// The chat format that `name` says; with "auto" that of the template in a folder
/// (chat_template.jinja, or chat_template in tokenizer_config.json), and without one that whose
/// marks are tokens. Throws Error (Fault::user) that names `flag` if none is known.
tokenizer::ChatFormat open_chat(const char* flag, const std::string& name,
                                const std::string& folder, const tokenizer::Tokenizer& tokenizer);

/// Conversations as tokens, one after the other.
struct Conversations {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> written;  ///< as in tokenizer::ChatTokens
  std::vector<std::int64_t> ends;     ///< conversation i ends before token ends[i]
  /// (the first ones, the last `fraction` of them: at least one unless it is 0).
  std::pair<Conversations, Conversations> split(double fraction) const;
  /// The first conversations, up to the one with which they have `most` tokens; 0: all.
  Conversations first(std::int64_t most) const;
  /// Those from number `begin` up to `end`.
  Conversations slice(std::int64_t begin, std::int64_t end) const;
};

/// Reads .jsonl files with an object in each line, {"messages": [{"role": "user", "content":
/// "..."}, ...]}. Throws Error (Fault::user) that names the file and line.
Conversations read_conversations(const std::vector<std::string>& files,
                                 const tokenizer::ChatWriter& chat);

}  // namespace weft::examples
