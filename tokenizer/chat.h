#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/tokenizer/tokenizer.h"

namespace weft::tokenizer {

/// One turn of a conversation.
struct ChatMessage {
  std::string role;  ///< "system" (first only), "user" or "assistant"
  std::string content;
};

/// How a family of models writes a conversation; docs/chat.md shows each.
enum class ChatFormat : std::uint8_t { chatml, llama3, mistral, llama2, deepseek };

/// "chatml", "llama3", "mistral", "llama2" or "deepseek".
std::string_view name_of(ChatFormat format);
/// The format of that name. Throws  Error that lists the names
ChatFormat chat_format(std::string_view name);
/// The format of a chat template (Jinja), known by the marks in it; nullopt if none is known.
std::optional<ChatFormat> recognise_chat(std::string_view chat_template);
/// The format whose marks are tokens; nullopt if none is.
std::optional<ChatFormat> recognise_chat(const Tokenizer& tokenizer);

/// The tokens of a conversation, and which of them an assistant writes.
struct ChatTokens {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> written;  ///< 1: of an assistant's text, or the mark that ends it
};

/// Writes conversations as tokens. The marks between turns are tokens by their ids; the text of a
/// turn never becomes one, whatever it says.
///
///   const ChatWriter chat(*tokenizer, ChatFormat::chatml);
///   const ChatTokens prompt = chat.write(messages, /*begin_reply=*/true);
class ChatWriter {
 public:
  /// `tokenizer` must outlive this object. Throws  Error if it lacks a mark of the format
  ChatWriter(const Tokenizer& tokenizer, ChatFormat format);
  /// With `begin_reply` the tokens end where an assistant's text begins.
  /// Throws  Error on an unknown role, a system message that is not the first, and turns that do
  ///         not alternate where the format cannot write them
  ChatTokens write(std::span<const ChatMessage> messages, bool begin_reply) const;
  /// The token with which an assistant's text ends.
  std::int32_t end() const { return end_; }

 private:
  class Writer;
  std::int32_t mark(std::string_view text) const;
  void write_inst(Writer& w, const std::string& system, std::span<const ChatMessage> turns) const;

  const Tokenizer* tokenizer_;
  ChatFormat format_;
  std::int32_t end_;
};

}  // namespace weft::tokenizer
