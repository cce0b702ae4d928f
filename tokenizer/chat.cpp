#include "weft/tokenizer/chat.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "weft/core/error.h"

namespace weft::tokenizer {
namespace {

constexpr std::string_view kDeepseekUser = "<｜User｜>", kDeepseekAssistant = "<｜Assistant｜>",
                           kDeepseekBegin = "<｜begin▁of▁sentence｜>",
                           kDeepseekEnd = "<｜end▁of▁sentence｜>";

struct Format {
  ChatFormat format;
  std::string_view name;
  std::string_view known_by;  ///< in a template
  std::string_view end;       ///< of an assistant's text
};
// llama2 before mistral: its template has [INST] too.
constexpr Format kFormats[] = {{ChatFormat::chatml, "chatml", "<|im_start|>", "<|im_end|>"},
                               {ChatFormat::llama3, "llama3", "<|start_header_id|>", "<|eot_id|>"},
                               {ChatFormat::deepseek, "deepseek", kDeepseekUser, kDeepseekEnd},
                               {ChatFormat::llama2, "llama2", "<<SYS>>", "</s>"},
                               {ChatFormat::mistral, "mistral", "[INST]", "</s>"}};

const Format& row(ChatFormat format) {
  return *std::find_if(std::begin(kFormats), std::end(kFormats),
                       [&](const Format& f) { return f.format == format; });
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const std::size_t first = text.find_first_not_of(kSpace);
  return first == text.npos ? std::string_view()
                            : text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

void check_roles(std::span<const ChatMessage> messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    check(role == "system" || role == "user" || role == "assistant",
          "messages: role must be system, user or assistant, got '{}'", role);
    check(role != "system" || i == 0, "messages: a system message must be the first, got one as {}",
          i + 1);
  }
}

// user, assistant, user, ...: the formats with [INST] cannot say anything else.
void check_alternate(std::span<const ChatMessage> turns, std::string_view format) {
  for (std::size_t i = 0; i < turns.size(); ++i)
    check((turns[i].role == "user") == (i % 2 == 0),
          "messages: with {} turns must alternate, user first, got '{}' as turn {}", format,
          turns[i].role, i + 1);
}

}  // namespace

// Text up to the next mark is encoded together, so that words are cut as in the whole.
class ChatWriter::Writer {
 public:
  explicit Writer(const Tokenizer& t) : tokenizer_(t) {}
  void text(std::string_view more) { text_ += more; }
  void mark(std::int32_t id, bool written = false) {
    flush(written);
    out_.tokens.push_back(id);
    out_.written.push_back(written ? 1 : 0);
  }
  // Ends the text here: what follows is encoded for itself.
  void flush(bool written = false) {
    if (text_.empty()) return;
    for (const std::int32_t id : tokenizer_.encode(text_)) {
      out_.tokens.push_back(id);
      out_.written.push_back(written ? 1 : 0);
    }
    text_.clear();
  }
  void written(std::string_view content, std::int32_t end) {
    flush();
    text(content);
    mark(end, true);
  }
  void turn(const ChatMessage& m, std::string_view content, std::int32_t end) {
    if (m.role == "assistant") return written(content, end);
    text(content);
    mark(end);
  }
  ChatTokens finish() {
    flush();
    return std::move(out_);
  }

 private:
  const Tokenizer& tokenizer_;
  std::string text_;
  ChatTokens out_;
};

std::string_view name_of(ChatFormat format) { return row(format).name; }

ChatFormat chat_format(std::string_view name) {
  std::string names;
  for (const Format& f : kFormats) {
    if (name == f.name) return f.format;
    names += (names.empty() ? "" : ", ") + std::string(f.name);
  }
  throw Error(message("chat format: must be one of {}, got '{}'", names, std::string(name)),
              Fault::user);
}

std::optional<ChatFormat> recognise_chat(std::string_view chat_template) {
  for (const Format& f : kFormats)
    if (chat_template.find(f.known_by) != chat_template.npos) return f.format;
  return {};
}

std::optional<ChatFormat> recognise_chat(const Tokenizer& tokenizer) {
  for (const Format& f : kFormats)
    if (f.format != ChatFormat::llama2 && tokenizer.find(f.known_by) && tokenizer.find(f.end))
      return f.format;
  return {};
}

ChatWriter::ChatWriter(const Tokenizer& tokenizer, ChatFormat format)
    : tokenizer_(&tokenizer), format_(format), end_(mark(row(format).end)) {}

std::int32_t ChatWriter::mark(std::string_view text) const {
  const auto id = tokenizer_->find(text);
  check(id.has_value(), "tokenizer: has no token '{}', which {} needs", std::string(text),
        std::string(name_of(format_)));
  return *id;
}

// The formats with [INST]. Mistral's first tokenizer and Llama 2's have no token for it: there it
// is text, as these models have learnt it. The system message stands in the first user message, or
// in the last one where [INST] is a token.
// Source: github.com/mistralai/cookbook, concept-deep-dive/tokenization.
void ChatWriter::write_inst(Writer& w, const std::string& system,
                            std::span<const ChatMessage> turns) const {
  check_alternate(turns, name_of(format_));
  const bool llama2 = format_ == ChatFormat::llama2;
  const std::int32_t begin = mark("<s>");
  const auto open = llama2 ? std::nullopt : tokenizer_->find("[INST]");
  const auto close = llama2 ? std::nullopt : tokenizer_->find("[/INST]");
  const auto system_mark = llama2 ? std::nullopt : tokenizer_->find("[SYSTEM_PROMPT]");
  const std::size_t last_user = turns.empty() ? 0 : (turns.size() - 1) / 2 * 2;
  const std::size_t with_system = open && !system_mark ? last_user : 0;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const std::string said(trimmed(turns[i].content));
    if (turns[i].role == "assistant") {
      w.written(llama2 ? said + " " : said, end_);
      continue;
    }
    if (i == 0 || llama2) w.mark(begin);
    if (i == 0 && !system.empty() && system_mark) {  // later tokenizers of Mistral
      w.mark(*system_mark);
      w.text(system);
      w.mark(mark("[/SYSTEM_PROMPT]"));
    }
    open ? w.mark(*open) : w.text("[INST] ");
    if (i == with_system && !system.empty() && !system_mark)
      w.text(llama2 ? "<<SYS>>\n" + system + "\n<</SYS>>\n\n" : system + "\n\n");
    w.text(said);
    close ? w.mark(*close) : w.text(" [/INST]");
  }
}

ChatTokens ChatWriter::write(std::span<const ChatMessage> messages, bool begin_reply) const {
  check_roles(messages);
  const bool has_system = !messages.empty() && messages[0].role == "system";
  const std::string system = has_system ? messages[0].content : "";
  const auto turns = messages.subspan(has_system ? 1 : 0);
  Writer w(*tokenizer_);

  switch (format_) {
    case ChatFormat::chatml: {
      const std::int32_t start = mark("<|im_start|>");
      const auto header = [&](std::string_view role) {
        w.mark(start);
        w.text(std::string(role) + "\n");
      };
      for (const ChatMessage& m : messages) {
        header(m.role);
        w.turn(m, m.content, end_);
        w.text("\n");
      }
      if (begin_reply) header("assistant");
      break;
    }
    case ChatFormat::llama3: {
      const std::int32_t start = mark("<|start_header_id|>"), stop = mark("<|end_header_id|>");
      const auto header = [&](std::string_view role) {
        w.mark(start);
        w.text(role);
        w.mark(stop);
        w.text("\n\n");
      };
      w.mark(mark("<|begin_of_text|>"));
      for (const ChatMessage& m : messages) {
        header(m.role);
        w.turn(m, trimmed(m.content), end_);
      }
      if (begin_reply) header("assistant");
      break;
    }
    case ChatFormat::deepseek: {
      const std::int32_t user = mark(kDeepseekUser), assistant = mark(kDeepseekAssistant);
      w.mark(mark(kDeepseekBegin));
      w.text(system);
      for (const ChatMessage& m : turns) {
        const bool replies = m.role == "assistant";
        w.mark(replies ? assistant : user);
        replies ? w.written(m.content, end_) : w.text(m.content);
      }
      if (begin_reply) w.mark(assistant);
      break;
    }
    case ChatFormat::mistral:
    case ChatFormat::llama2:
      write_inst(w, system, turns);
      break;
  }
  return w.finish();
}

}  // namespace weft::tokenizer
