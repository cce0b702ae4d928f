// What llama.cpp is told of a tokenizer must encode as the tokenizer does.
#include <doctest/doctest.h>

#include <string>

#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/tests/data_support.h"
#include "weft/tests/support.h"
#include "weft/tokenizer/tokenizer.h"
#include "weft/tokenizer/vocabulary.h"

namespace weft::tokenizer_test {
namespace {

using test::Ints;
using namespace tokenizer;

const std::string kFixtures = std::string(WEFT_FIXTURES) + "/tokenizers/";

io::Json parsed(const std::string& file) {
  return io::Json::parse(io::read_file(kFixtures + file), file);
}

constexpr const char* kLlama3Split =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/// A tokenizer.json of what the vocabulary says, with the cut of another file.
io::Json rebuilt(const Vocabulary& v, const std::string& regex) {
  io::Json vocab = io::Json::object(), merges = io::Json::Array();
  for (std::size_t i = 0; i < v.tokens.size(); ++i)
    if (v.types[i] == TokenType::normal) vocab.append(v.tokens[i], static_cast<std::int64_t>(i));
  for (const std::string& m : v.merges) merges.push_back(m);
  io::Json model = io::Json::object();
  model.set("type", "BPE").set("vocab", std::move(vocab)).set("merges", std::move(merges));
  const io::Json split = io::Json::object()
                             .set("type", "Split")
                             .set("pattern", io::Json::object().set("Regex", regex))
                             .set("behavior", "Isolated");
  const io::Json bytes = io::Json::object()
                             .set("type", "ByteLevel")
                             .set("add_prefix_space", false)
                             .set("use_regex", false);
  return io::Json::object()
      .set("model", std::move(model))
      .set("pre_tokenizer", io::Json::object()
                                .set("type", "Sequence")
                                .set("pretokenizers", io::Json::Array{split, bytes}));
}

/// A tokenizer.json of characters, as those of Llama 2: `space` is empty, Prepend or the scheme of
/// a Metaspace.
io::Json characters(const std::vector<std::string>& merges, const std::string& space,
                    bool cut = false) {
  io::Json vocab = io::Json::object(), list = io::Json::Array();
  std::int64_t next = 0;
  const auto add = [&](const std::string& token) {
    if (!vocab.find(token)) vocab.append(token, next++);
  };
  for (const char* const token : {"\u2581", "a", "b", "c"}) add(token);
  for (int b = 0; b < 256; ++b) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(b));
    add(text);
  }
  for (const std::string& m : merges) {
    const std::size_t at = m.find(' ');
    add(m.substr(at + 1));
    add(m.substr(0, at) + m.substr(at + 1));
    list.push_back(m);
  }
  io::Json model = io::Json::object();
  model.set("type", "BPE").set("byte_fallback", true).set("vocab", std::move(vocab));
  model.set("merges", std::move(list));
  const io::Json mark = io::Json::object()
                            .set("type", "Replace")
                            .set("pattern", io::Json::object().set("String", " "))
                            .set("content", "\u2581");
  io::Json file = io::Json::object().set("model", std::move(model));
  if (space.empty()) return file.set("normalizer", mark);
  if (space == "Prepend")
    return file.set(
        "normalizer",
        io::Json::object()
            .set("type", "Sequence")
            .set("normalizers",
                 io::Json::Array{io::Json::object().set("type", "Prepend").set("prepend", "\u2581"),
                                 mark}));
  return file.set("pre_tokenizer", io::Json::object()
                                       .set("type", "Metaspace")
                                       .set("replacement", "\u2581")
                                       .set("prepend_scheme", space)
                                       .set("split", cut));
}

}  // namespace

TEST_CASE("vocabulary: one merge a token of a list of ranks encodes alike") {
  const auto ranks = open(kFixtures + "ranks.tiktoken", {.split = kLlama3Split});
  const Vocabulary v = vocabulary_of(*ranks, ranks->vocab() + 3);
  CHECK(v.model == "gpt2");
  CHECK(v.pre == "llama-bpe");
  CHECK(v.tokens.back() == "[PAD" + std::to_string(ranks->vocab() + 2) + "]");
  CHECK(v.types.back() == TokenType::unused);
  const auto copy = read(rebuilt(v, kLlama3Split).dump(), "copy");
  int texts = 0;
  const io::Json expected = parsed("expected.json");
  for (const io::Json& pair : expected.at("ranks.tiktoken").items()) {
    const std::string& text = pair.items()[0].as_string();
    CAPTURE(text);
    CHECK(copy->encode(text) == ranks->encode(text));
    ++texts;
  }
  CHECK(texts > 30);
}

TEST_CASE("vocabulary: tokenizer.json") {
  const auto qwen = open(kFixtures + "qwen.json");
  const Vocabulary v = vocabulary_of(*qwen, qwen->vocab());
  CHECK(v.pre == "qwen2");
  std::size_t added = 0;
  const io::Json file = parsed("qwen.json");
  for (const io::Json& t : file.at("added_tokens").items()) {
    const auto id = static_cast<std::size_t>(t.at("id").as_int());
    CHECK(v.tokens[id] == t.at("content").as_string());
    CHECK(v.types[id] ==
          (t.at("special").as_bool() ? TokenType::control : TokenType::user_defined));
    ++added;
  }
  CHECK(added > 0);
  for (const io::JsonMember& m : file.at("model").at("vocab").members())
    CHECK(v.tokens[static_cast<std::size_t>(m.value.as_int())] == m.key);
  CHECK(v.merges.size() == file.at("model").at("merges").items().size());
  CHECK(v.first == qwen->encode("", {.around = true}).at(0));
}

TEST_CASE("vocabulary: a SentencePiece model has its scores, pieces and bytes") {
  const auto sp = open(kFixtures + "small.model");
  const Vocabulary v = vocabulary_of(*sp, sp->vocab());
  CHECK(v.model == "llama");
  CHECK(v.space_prefix);
  CHECK(v.merges.empty());
  CHECK(v.tokens[static_cast<std::size_t>(*sp->find("</s>"))] == "</s>");
  CHECK(v.types[static_cast<std::size_t>(*sp->find("</s>"))] == TokenType::control);
  CHECK(v.types[static_cast<std::size_t>(*v.unknown)] == TokenType::unknown);
  const Ints newline = sp->encode("\n");
  CHECK(v.tokens[static_cast<std::size_t>(newline.back())] == "<0x0A>");
  CHECK(v.types[static_cast<std::size_t>(newline.back())] == TokenType::byte);
  // Training gives the n-th piece that merges the score -n.
  CHECK(*std::min_element(v.scores.begin(), v.scores.end()) < -100);
  CHECK(v.scores.size() == v.tokens.size());
}

TEST_CASE("vocabulary: characters without a space before the text merge by their list") {
  const auto t = read(characters({"a b", "ab c"}, "").dump(), "file");
  const Vocabulary v = vocabulary_of(*t, t->vocab());
  CHECK(v.model == "gpt2");
  CHECK(v.pre == "sarvam-moe");
  CHECK(v.merges == std::vector<std::string>{"a b", "ab c"});
  CHECK(v.scores.size() == v.tokens.size());
  CHECK(v.types[static_cast<std::size_t>(t->encode("\n").at(0))] == TokenType::byte);
  CHECK(v.tokens[static_cast<std::size_t>(t->encode(" ").at(0))] == "\u2581");
  CHECK(v.differs == "");
  // It cuts text around line breaks.
  const auto lines = read(characters({"a \n"}, "").dump(), "file"),
             breaks = read(characters({"\n \n"}, "").dump(), "file");
  CHECK(vocabulary_of(*lines, lines->vocab()).model == "llama");
  CHECK(vocabulary_of(*breaks, breaks->vocab()).model == "gpt2");
}

TEST_CASE("vocabulary: scores of a list of merges, and where they are not its order") {
  const auto differs = [](const std::vector<std::string>& merges, const std::string& space,
                          bool cut = false) {
    const auto t = read(characters(merges, space, cut).dump(), "file");
    const Vocabulary v = vocabulary_of(*t, t->vocab());
    CHECK(v.model == "llama");
    CHECK(v.space_prefix);
    CHECK(v.scores[static_cast<std::size_t>(*t->find("ab"))] == 0);
    return v.differs;
  };
  // Every pair of each token, one token after the other.
  CHECK(differs({"a b", "b c", "ab c", "a bc"}, "Prepend") == "");
  CHECK(differs({"a b", "b c", "ab c"}, "Prepend") ==
        "the list of merges has not every pair that gives 'abc'");
  CHECK(differs({"a b", "ab c", "b c", "a bc"}, "Prepend") ==
        "the merges that give 'abc' do not follow each other");
  CHECK(differs({"a b"}, "always") == "texts that begin with a space get one more");
  CHECK(differs({"a b"}, "first") ==
        "texts that begin with a space get one more; text behind an added token gets a space");
  CHECK(differs({"a b"}, "always", true) == "texts that begin with a space get one more");
  CHECK_THROWS_WITH_AS(differs({"a b", "b \u2581"}, "always", true),
                       "tokenizer: llama.cpp has no equal of a cut before each \u2581 where tokens "
                       "have it inside",
                       Error);
}

TEST_CASE("vocabulary: bytes, and what llama.cpp has no equal of") {
  const Vocabulary v = vocabulary_of(ByteTokenizer(), 300);
  CHECK(v.tokens['a'] == "a");
  CHECK(v.tokens[' '] == "Ġ");
  CHECK(v.tokens[256] == "[PAD256]");
  CHECK(v.merges.empty());
  CHECK_THROWS_WITH_AS(vocabulary_of(ByteTokenizer(), 131),
                       "tokenizer: has 256 ids, and the model 131", Error);
  const auto gpt2 = open(kFixtures + "gpt2.json");
  CHECK_THROWS_WITH_AS(vocabulary_of(*gpt2, 2000),
                       "tokenizer: llama.cpp has no equal of a space that is added before the text",
                       Error);
}

}  // namespace weft::tokenizer_test
