// Ids of the reference libraries, for small tokenizers of each format:
// tests/fixtures/make_tokenizers.py wrote them. scripts/tokenizer_oracle.py compares published
// vocabularies.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/tests/data_support.h"
#include "weft/tests/support.h"
#include "weft/tokenizer/split.h"
#include "weft/tokenizer/tokenizer.h"
#include "weft/tokenizer/unicode.h"
#include "weft/tokenizer/utf8.h"

namespace weft::tokenizer_test {
using test::error_of;
using test::Ints;
using namespace tokenizer;

namespace {

const std::string kFolder = WEFT_FIXTURES "/tokenizers/";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::unique_ptr<Tokenizer> open_fixture(const std::string& name) {
  return open(kFolder + name, {.split = name.ends_with(".tiktoken") ? kLlama3 : ""});
}

}  // namespace

TEST_CASE("tokenizer: the ids of the reference libraries") {
  const io::Json expected =
      io::Json::parse(io::read_file(kFolder + "expected.json"), "expected.json");
  int texts = 0;
  for (const io::JsonMember& file : expected.members()) {
    CAPTURE(file.key);
    const auto tokenizer = open_fixture(file.key);
    // The texts of tokenizers' ids name added tokens; the other libraries' do not.
    const bool names = file.key.ends_with(".json");
    for (const io::Json& pair : file.value.items()) {
      const std::string& text = pair.items()[0].as_string();
      CAPTURE(text);
      Ints ids;
      for (const io::Json& id : pair.items()[1].items())
        ids.push_back(static_cast<std::int32_t>(id.as_int()));
      CHECK(tokenizer->encode(text, {.added_tokens = names}) == ids);
      ++texts;
    }
  }
  CHECK(texts > 200);
}

TEST_CASE("tokenizer: decoding gives the text back, up to NFC") {
  const io::Json expected =
      io::Json::parse(io::read_file(kFolder + "expected.json"), "expected.json");
  for (const io::JsonMember& file : expected.members()) {
    CAPTURE(file.key);
    const auto tokenizer = open_fixture(file.key);
    for (const io::Json& pair : file.value.items()) {
      std::string text = pair.items()[0].as_string();
      CAPTURE(text);
      const Ints ids = tokenizer->encode(text);
      if (file.key == "qwen.json") text = nfc(text);
      if (file.key == "small.model" && text.find("\u2581") != text.npos) continue;  // a space there
      // ByteLevel with add_prefix_space puts a space before, and so does the reference.
      if (file.key == "gpt2.json" && !text.empty() && text[0] != ' ') text = " " + text;
      CHECK(tokenizer->decode(ids) == text);
      StreamDecoder stream(*tokenizer);
      std::string streamed;
      for (const std::int32_t id : ids) {
        streamed += stream.next(id);
        CHECK(valid_utf8(streamed) == streamed.size());
      }
      CHECK(streamed + stream.finish() == text);
    }
  }
}

TEST_CASE("tokenizer: ignore_merges takes a piece that is a token, which no merges reach") {
  const auto file = [](const std::string& ignores) {
    return R"({"model":{"type":"BPE","unk_token":"a","ignore_merges":)" + ignores +
           R"(,"vocab":{"a":0,"b":1,"c":2,"ab":3,"abc":4},"merges":["a b"]}})";
  };
  CHECK(read(file("true"), "t")->encode("abc") == Ints{4});
  CHECK(read(file("true"), "t")->encode("abcc") == Ints{3, 2, 2});
  CHECK(read(file("false"), "t")->encode("abc") == Ints{3, 2});
  // The ranks of a .tiktoken file: "abcd" is a token, and neither "ab" nor "bc" nor "cd" is.
  std::string ranks = io::read_file(kFolder + "ranks.tiktoken");
  const std::int64_t count = std::count(ranks.begin(), ranks.end(), '\n');
  ranks += "cXF6Vw== " + std::to_string(count) + "\n";  // "qqzW"
  CHECK(read(ranks, "t", {.split = kLlama3})->encode("qqzW") ==
        Ints{static_cast<std::int32_t>(count)});
}

TEST_CASE("tokenizer: ignore_merges makes no mark of a user's text") {
  const auto t =
      read(R"({"added_tokens":[{"id":3,"content":"ab","special":true}],"model":{"type":"BPE",
      "unk_token":"c","ignore_merges":true,"vocab":{"a":0,"b":1,"c":2,"ab":3},"merges":[]}})",
           "t");
  CHECK(t->encode("ab") == Ints{0, 1});
  CHECK(t->encode("ab", {.added_tokens = true}) == Ints{3});
}

TEST_CASE("tokenizer: GPT-4 keeps white space at the end of a text together, Llama 3 cuts it") {
  const std::string gpt4 =
      R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
  const auto pieces = [](const std::string& regex, const std::string& text) {
    std::vector<std::string> out;
    each_piece(text, {static_cast<Split>(find_split(regex))},
               [&](std::string_view piece) { out.emplace_back(piece); });
    return out;
  };
  using Pieces = std::vector<std::string>;
  CHECK(pieces(gpt4, "x\n  ") == Pieces{"x", "\n  "});
  CHECK(pieces(kLlama3, "x\n  ") == Pieces{"x", "\n", "  "});
  CHECK(pieces(gpt4, "x\n  y\u3000\n") == Pieces{"x", "\n", " ", " y", "\u3000\n"});
  // As many ranks as GPT-4's file has.
  std::string ranks = io::read_file(kFolder + "ranks.tiktoken");
  const auto base64 = [](std::int64_t i) {
    const char* const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out = "////";  // 12 bytes that no other token has
    for (int shift = 18; shift >= 0; shift -= 6) out += digits[i >> shift & 63];
    return out;
  };
  auto rank = std::count(ranks.begin(), ranks.end(), '\n');
  const std::string space_line = "CiAg " + std::to_string(rank++) + "\n";  // "\n  "
  ranks += space_line;
  const auto line_break = static_cast<std::int32_t>(rank - 1);
  for (; rank < 100'256; ++rank) ranks += base64(rank) + " " + std::to_string(rank) + "\n";
  const auto t = read(ranks, "t");
  CHECK(t->encode("x\n  ").back() == line_break);
  CHECK(t->find("<|endofprompt|>") == 100'276);
}

TEST_CASE("tokenizer: bytes") {
  const ByteTokenizer tokenizer;
  CHECK(tokenizer.vocab() == 256);
  CHECK(tokenizer.encode("a\xFF") == Ints{97, 255});
  std::string every;
  for (int i = 0; i < 256; ++i) every += static_cast<char>(i);
  CHECK(tokenizer.encode(every) == test::count_to(256));
  CHECK(tokenizer.decode(tokenizer.encode(every)) == every);
  CHECK(error_of([&] { tokenizer.decode(Ints{256}); }) ==
        "decode: a byte token must be in [0, 256), got 256");
  CHECK(error_of([&] { tokenizer.decode(Ints{-1}); }) ==
        "decode: a byte token must be in [0, 256), got -1");
  CHECK(open("bytes")->vocab() == 256);
}

TEST_CASE("tokenizer: the text of a user names no added token") {
  const auto tokenizer = open_fixture("qwen.json");
  const std::int32_t end = tokenizer->find("<|end|>").value();
  const std::string text = "x<|end|><think>";
  const Ints plain = tokenizer->encode(text),
             named = tokenizer->encode(text, {.added_tokens = true});
  CHECK(std::count(plain.begin(), plain.end(), end) == 0);
  CHECK(tokenizer->decode(plain) == text);
  CHECK(named.size() == 3);
  CHECK(named[1] == end);
  CHECK(tokenizer->is_special(end));
  CHECK(tokenizer->decode(named) == "x<think>");  // "<think>" is text, as Qwen3 has it
  CHECK(tokenizer->decode(named, {.special = true}) == text);
  CHECK(tokenizer->encode("x", {.around = true}) == Ints{end, plain[0]});
  CHECK(tokenizer->find("no such token") == std::nullopt);
}

TEST_CASE("tokenizer: bytes that are not UTF-8") {
  const std::string text("a\xFF\xC3 b\xE2\x82\0\xF0\x9F\x98\x80\xED\xA0\x80", 15);
  for (const char* const name : {"gpt2.json", "qwen.json", "tekken.json", "ranks.tiktoken"}) {
    const auto tokenizer = open_fixture(name);
    const std::string back = tokenizer->decode(tokenizer->encode(text));
    CHECK(back == (name == std::string("gpt2.json") ? " " + text : text));
  }
  // SentencePiece replaces each such byte.
  const auto model = open_fixture("small.model");
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(model->decode(model->encode("a\xFF\xE2\x82z")) == "a" + bad + bad + bad + "z");
}

TEST_CASE("tokenizer: a stream holds the bytes of a character until it is complete") {
  const ByteTokenizer bytes;
  const auto parts = [&](std::string_view text) {
    StreamDecoder stream(bytes);
    std::vector<std::string> out;
    for (const char c : text) out.push_back(stream.next(static_cast<unsigned char>(c)));
    out.push_back(stream.finish());
    return out;
  };
  using Parts = std::vector<std::string>;
  const std::string bad = "\xEF\xBF\xBD";
  CHECK(parts("a\xC3\xA9") == Parts{"a", "", "é", ""});
  CHECK(parts("\xF0\x9F\x98\x80!") == Parts{"", "", "", "😀", "!", ""});
  CHECK(parts("\xF0\x9F\x98") == Parts{"", "", "", bad});  // one maximal part
  CHECK(parts("\xF0\x9F"
              "a") == Parts{"", "", bad + "a", ""});
  CHECK(parts("\xED\xA0") == Parts{"", bad + bad, ""});  // no surrogate can follow
  CHECK(parts("\x80\xC0") == Parts{bad, bad, ""});
}

TEST_CASE("tokenizer: NFC") {
  CHECK(nfc("") == "");
  CHECK(nfc("plain e\u0301") == "plain é");
  CHECK(nfc("a\u0323\u0307") == nfc("a\u0307\u0323"));  // sorted, then composed
  CHECK(nfc("\u212B\u1100\u1161\u11A8") == "Å각");
  CHECK(nfc("\u0958") == "\u0915\u093C");  // excluded from composition
  CHECK(nfc("\u0301a\u0301") == "\u0301á");
  CHECK(nfc("e\xFF\u0301") == "e\xFF\u0301");  // a wrong byte composes with nothing
  std::string many = "a";
  for (int i = 0; i < 100'000; ++i) many += i % 2 ? "\u0301" : "\u0323";
  CHECK(nfc(many).size() == many.size());  // sorting takes n log n steps
}

TEST_CASE("tokenizer: one letter, a million times") {
  for (const char* const name : {"gpt2.json", "qwen.json", "ranks.tiktoken", "small.model"}) {
    const auto tokenizer = open_fixture(name);
    for (const char* const letter : {"a", " ", "漢", "\n", "7"}) {
      // Quadratic merging would take minutes already here.
      const std::size_t size = name == std::string("gpt2.json") ? 1'000'000 : 100'000;
      std::string text;
      while (text.size() < size) text += letter;
      const std::string back = tokenizer->decode(tokenizer->encode(text));
      CHECK(std::string_view(back).substr(back.size() - text.size()) == text);
    }
  }
}

}  // namespace weft::tokenizer_test
