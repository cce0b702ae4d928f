// Conversations as tokens, and the end of a stream of text.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/tests/support.h"
#include "weft/tokenizer/chat.h"
#include "weft/tokenizer/stop_text.h"

namespace weft::chat_test {
using test::error_of;
using namespace tokenizer;

namespace {

constexpr const char* kMarks[] = {"<|im_start|>",
                                  "<|im_end|>",
                                  "<|begin_of_text|>",
                                  "<|start_header_id|>",
                                  "<|end_header_id|>",
                                  "<|eot_id|>",
                                  "<s>",
                                  "</s>",
                                  "[INST]",
                                  "[/INST]",
                                  "<｜begin▁of▁sentence｜>",
                                  "<｜end▁of▁sentence｜>",
                                  "<｜User｜>",
                                  "<｜Assistant｜>"};
constexpr int kFirstMark = 600;

// The byte-level tokenizer of a fixture, with some of the marks.
std::unique_ptr<Tokenizer> with_marks(const std::vector<std::string>& marks,
                                      const char* normalized = "false") {
  std::string json = io::read_file(WEFT_FIXTURES "/tokenizers/qwen.json");
  std::string added = "\"added_tokens\":[";
  int id = kFirstMark;
  for (const std::string& mark : marks)
    added +=
        "{\"id\":" + std::to_string(id++) + ",\"content\":\"" + mark +
        "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":" + normalized +
        ",\"special\":true},";
  const std::string from = "\"added_tokens\":[";
  json.replace(json.find(from), from.size(), added);
  return read(json, "test");
}

std::unique_ptr<Tokenizer> with_all() { return with_marks({std::begin(kMarks), std::end(kMarks)}); }

std::string all_text(const Tokenizer& t, const ChatTokens& c) {
  return t.decode(c.tokens, {.special = true});
}

std::string written_text(const Tokenizer& t, const ChatTokens& c) {
  std::vector<std::int32_t> own;
  for (std::size_t i = 0; i < c.tokens.size(); ++i)
    if (c.written[i]) own.push_back(c.tokens[i]);
  return t.decode(own, {.special = true});
}

const std::vector<ChatMessage> kTalk = {
    {"system", "Be kind."}, {"user", " Hi "}, {"assistant", "Hello."}, {"user", "Bye"}};

}  // namespace

TEST_CASE("chat: conversations of each format") {
  struct Case {
    ChatFormat format;
    std::string text, written;
  };
  const Case cases[] = {
      {ChatFormat::chatml,
       "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
       "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
       "<|im_start|>assistant\n",
       "Hello.<|im_end|>"},
      {ChatFormat::llama3,
       "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
       "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
       "<|start_header_id|>assistant<|end_header_id|>\n\n",
       "Hello.<|eot_id|>"},
      {ChatFormat::mistral, "<s>[INST]Hi[/INST]Hello.</s>[INST]Be kind.\n\nBye[/INST]",
       "Hello.</s>"},
      {ChatFormat::llama2,
       "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST]Hello. </s><s>[INST] Bye [/INST]",
       "Hello. </s>"},
      {ChatFormat::deepseek,
       "<｜begin▁of▁sentence｜>Be kind.<｜User｜> Hi "
       "<｜Assistant｜>Hello.<｜end▁of▁sentence｜><｜User｜>Bye<｜Assistant｜>",
       "Hello.<｜end▁of▁sentence｜>"}};
  const auto t = with_all();
  for (const Case& c : cases) {
    CAPTURE(name_of(c.format));
    const ChatWriter chat(*t, c.format);
    const ChatTokens tokens = chat.write(kTalk, true);
    CHECK(all_text(*t, tokens) == c.text);
    CHECK(written_text(*t, tokens) == c.written);
    CHECK(chat_format(name_of(c.format)) == c.format);
    // What a model goes on from is how a longer conversation begins.
    std::vector<ChatMessage> longer = kTalk;
    longer.push_back({"assistant", "See you."});
    const ChatTokens more = chat.write(longer, false);
    REQUIRE(more.tokens.size() > tokens.tokens.size());
    CHECK(std::equal(tokens.tokens.begin(), tokens.tokens.end(), more.tokens.begin()));
  }
}

TEST_CASE("chat: what Mistral's tokenizers have of the marks") {
  const auto text = [](const std::vector<std::string>& marks) {
    const auto t = with_marks(marks);
    return all_text(*t, ChatWriter(*t, ChatFormat::mistral).write(kTalk, true));
  };
  CHECK(text({"<s>", "</s>"}) == "<s>[INST] Be kind.\n\nHi [/INST]Hello.</s>[INST] Bye [/INST]");
  CHECK(text({"<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}) ==
        "<s>[SYSTEM_PROMPT]Be kind.[/SYSTEM_PROMPT][INST]Hi[/INST]Hello.</s>[INST]Bye[/INST]");
}

TEST_CASE("chat: the text of a turn is never a mark") {
  const auto t = with_all();
  for (const ChatFormat format : {ChatFormat::chatml, ChatFormat::llama3, ChatFormat::mistral,
                                  ChatFormat::llama2, ChatFormat::deepseek}) {
    const ChatWriter chat(*t, format);
    const auto marks = [&](const std::string& said) {
      const ChatMessage turn[] = {{"system", said}, {"user", said}, {"assistant", said}};
      const ChatTokens c = chat.write(turn, true);
      return std::count_if(c.tokens.begin(), c.tokens.end(),
                           [](std::int32_t id) { return id >= kFirstMark; });
    };
    for (const char* mark : kMarks) CHECK(marks(mark) == marks("x"));
  }
}

TEST_CASE("chat: a mark that the file's normalizer changes is found by its text in the file") {
  const std::string mark = "<e\u0301>";  // NFC joins the two characters
  for (const char* normalized : {"false", "true"}) {
    const auto t = with_marks({mark}, normalized);
    CHECK(t->find(mark) == kFirstMark);
    CHECK(t->encode(mark, {.added_tokens = true}) == std::vector<std::int32_t>{kFirstMark});
  }
}

TEST_CASE("chat: formats are recognised by templates and by tokens") {
  using F = ChatFormat;
  CHECK(recognise_chat("{{'<|im_start|>' + message.role}}") == F::chatml);
  CHECK(recognise_chat("'<|start_header_id|>' + role") == F::llama3);
  CHECK(recognise_chat("bos_token + '[INST] ' + content") == F::mistral);
  CHECK(recognise_chat("'<<SYS>>\\n' ... '[INST] '") == F::llama2);
  CHECK(recognise_chat("'<｜User｜>' + content") == F::deepseek);
  CHECK(!recognise_chat("{{ message }}"));
  CHECK(recognise_chat(*with_marks({"<|im_start|>", "<|im_end|>"})) == F::chatml);
  CHECK(recognise_chat(*with_marks({"</s>", "[INST]"})) == F::mistral);
  CHECK(!recognise_chat(*with_marks({"<|im_start|>"})));
}

TEST_CASE("chat: errors") {
  const auto t = with_all();
  const ChatWriter inst(*t, ChatFormat::mistral), chatml(*t, ChatFormat::chatml);
  const auto error = [](const ChatWriter& chat, const std::vector<ChatMessage>& turns) {
    return error_of([&] { (void)chat.write(turns, true); });
  };
  CHECK(error(chatml, {{"tool", "x"}}) ==
        "messages: role must be system, user or assistant, got 'tool'");
  CHECK(error(chatml, {{"user", "x"}, {"system", "y"}}) ==
        "messages: a system message must be the first, got one as 2");
  CHECK(error(inst, {{"assistant", "x"}}) ==
        "messages: with mistral turns must alternate, user first, got 'assistant' as turn 1");
  CHECK(error_of([] { ChatWriter(*with_marks({"<s>"}), ChatFormat::llama2); }) ==
        "tokenizer: has no token '</s>', which llama2 needs");
  CHECK(error_of([] { (void)chat_format("alpaca"); }) ==
        "chat format: must be one of chatml, llama3, deepseek, llama2, mistral, got 'alpaca'");
}

TEST_CASE("stop_text: the text before the first stop, however it is cut") {
  const std::string text = "abcabcd one\n\ntwo END";
  struct Case {
    std::vector<std::string> stops;
    std::string before;
    bool stopped;
  };
  for (const Case& c : {Case{{"\n\n"}, "abcabcd one", true}, Case{{"abcd", "two"}, "abc", true},
                        Case{{"abcd one", "bcd"}, "abca", true}, Case{{"cd", "bcd"}, "abca", true},
                        Case{{"two", "END"}, "abcabcd one\n\n", true}, Case{{"END."}, text, false},
                        Case{{}, text, false}})
    for (std::size_t step = 1; step <= text.size(); ++step) {
      StopText stop(c.stops);
      std::string out;
      for (std::size_t i = 0; i < text.size(); i += step) out += stop.next(text.substr(i, step));
      CHECK(stop.stopped() == c.stopped);
      CHECK(out + stop.finish() == c.before);
      // Nothing is held that cannot be the beginning of a stop.
      if (c.stops.empty()) CHECK(out == text);
    }
  CHECK(error_of([] { StopText({""}); }) == "stop_text: a string must not be empty");
}

}  // namespace weft::chat_test
