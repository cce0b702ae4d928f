#include "weft/examples/common/open_chat.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <string_view>

#include "weft/core/error.h"
#include "weft/data/document_reader.h"
#include "weft/data/text.h"
#include "weft/examples/common/folder_json.h"
#include "weft/io/file.h"
#include "weft/io/json.h"

namespace weft::examples {

tokenizer::ChatFormat open_chat(const char* flag, const std::string& name,
                                const std::string& folder, const tokenizer::Tokenizer& t) {
  if (name != "auto") return tokenizer::chat_format(name);
  const std::string text = folder.empty() ? "" : chat_template_in(folder);
  const auto format = text.empty() ? tokenizer::recognise_chat(t)
                                   : tokenizer::recognise_chat(std::string_view(text));
  check(format.has_value(),
        "{}: {} is of no known chat format; name chatml, llama3, mistral, llama2 or deepseek", flag,
        text.empty() ? "the tokenizer" : "the chat template in the folder");
  return *format;
}

Conversations Conversations::slice(std::int64_t begin, std::int64_t end) const {
  const auto place = [&](std::int64_t i) { return i ? ends[static_cast<std::size_t>(i - 1)] : 0; };
  const std::int64_t from = place(begin), to = place(end);
  Conversations out{{tokens.begin() + from, tokens.begin() + to},
                    {written.begin() + from, written.begin() + to},
                    {ends.begin() + begin, ends.begin() + end}};
  for (std::int64_t& e : out.ends) e -= from;
  return out;
}

std::pair<Conversations, Conversations> Conversations::split(double fraction) const {
  const std::int64_t all = std::ssize(ends);
  std::int64_t held = std::llround(fraction * static_cast<double>(all));
  if (fraction > 0) held = std::clamp<std::int64_t>(held, 1, all - 1);
  return {slice(0, all - held), slice(all - held, all)};
}

Conversations Conversations::first(std::int64_t most) const {
  std::int64_t count = std::ssize(ends);
  if (most > 0)
    count = std::min(count, std::lower_bound(ends.begin(), ends.end(), most) - ends.begin() + 1);
  return slice(0, count);
}

Conversations read_conversations(const std::vector<std::string>& files,
                                 const tokenizer::ChatWriter& chat) {
  Conversations out;
  for (const std::string& file : files) {
    std::istringstream lines(data::read_text({file}));
    std::int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (data::is_blank(line)) continue;
      try {
        std::vector<tokenizer::ChatMessage> messages;
        const io::Json json = io::Json::parse(line);
        for (const io::Json& m : json.at("messages").items())
          messages.push_back({m.at("role").as_string(), m.at("content").as_string()});
        const tokenizer::ChatTokens c = chat.write(messages, false);
        out.tokens.insert(out.tokens.end(), c.tokens.begin(), c.tokens.end());
        out.written.insert(out.written.end(), c.written.begin(), c.written.end());
      } catch (const Error& e) {
        throw Error(message("{} line {}: {}", file, number, std::string(e.what())), Fault::user);
      }
      out.ends.push_back(std::ssize(out.tokens));
    }
  }
  return out;
}

}  // namespace weft::examples
