// Damaged and hostile tokenizer files: one error in memory proportional to the file.
#include <doctest/doctest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>

#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/tests/damaged.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"
#include "weft/tokenizer/tokenizer.h"

namespace weft::tokenizer_files_test {
using test::error_of;

namespace {

const std::string kFolder = WEFT_FIXTURES "/tokenizers/";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// A tokenizer.json with this model, and more members before it.
std::string file_with(const std::string& vocab, const std::string& merges,
                      const std::string& more = "") {
  return "{" + more + R"("model":{"type":"BPE","unk_token":"a","vocab":{)" + vocab +
         R"(},"merges":[)" + merges + "]}}";
}

std::string refused(const std::string& content) {
  return error_of([&] { tokenizer::read(content, "t"); });
}

void damaged(const std::string& name, const std::string& split = "") {
  test::survives(io::read_file(kFolder + name), [&](const std::string& content) {
    const auto t = tokenizer::read(content, "t", {.split = split});
    const auto ids =
        t->encode("It's 12 <|end|> e\u0301\n ab", {.added_tokens = true, .around = true});
    t->decode(ids);
  });
}

}  // namespace

TEST_CASE("tokenizer files: damaged tokenizer.json") { damaged("gpt2.json"); }
TEST_CASE("tokenizer files: damaged .tiktoken") { damaged("ranks.tiktoken", kLlama3); }
TEST_CASE("tokenizer files: damaged .model") { damaged("small.model"); }

TEST_CASE("tokenizer files: what is wrong is named") {
  CHECK(refused("") == "t: is empty");
  CHECK(refused("{}") == "t: is no tokenizer.json: no \"model\"");
  CHECK(refused(file_with(R"("a":0,"":1)", R"(["a",""])")) == "t: merge 0 joins an empty token");
  CHECK(refused(file_with(R"("a":0)", R"("a b")")) == "t: merge 0: 'b' is not in the vocabulary");
  CHECK(refused(file_with(R"("a":0,"b":1)", R"("a b")")) ==
        "t: merge 0: 'ab' is not in the vocabulary");
  CHECK(refused(file_with(R"("a":0)", R"("a a a")")) ==
        "t: merge 0 must be two tokens with a space between them, got 'a a a'");
  CHECK(refused(file_with(R"("a":0,"b":123456789)", "")) ==
        "t: a token id must be in [0, 65544), got 123456789");
  CHECK(refused(file_with(R"("a":-1)", "")) == "t: a token id must be in [0, 65540), got -1");
  CHECK(refused(file_with(R"("a":0)", "", R"("normalizer":{"type":"Lowercase"},)")) ==
        "t: normalizer Lowercase is not supported; see docs/tokenizers.md");
  CHECK(
      refused(file_with(R"("a":0)", "", R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"x"},
        "behavior":"Isolated","invert":false},)"))
          .starts_with("t: the expression \"x\" is not known; known: gpt2, cl100k, gpt4, qwen2, "));
  CHECK(refused(R"({"model":{"type":"Unigram"}})") ==
        "t: model Unigram is not supported; see docs/tokenizers.md");
  CHECK(
      refused(R"({"pre_tokenizer":{"type":"ByteLevel"},"model":{"vocab":{"a":0},"merges":[]}})") ==
      "t: has no token for byte 0, so that text would be lost");
  CHECK(refused("YQ== 0\nYQ== 1\n") == "t: two ranks are the same token: see rank 1");
  CHECK(refused("YQ== x\n") ==
        "t: line 1: must be a token in base64, a space and its rank, got 'YQ== x'");
  CHECK(
      refused("YQ== 0\n") ==
      "t: 1 ranks are no vocabulary that is known; name its split in OpenOptions, or convert it to "
      "tokenizer.json");
  CHECK(refused("\n\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F"
                "abc") == "t: a field of 9223372036854775807 bytes in 3 bytes");
  CHECK(refused(std::string("\n\5\n\1a\x18\1\x12\2\x18\1", 11)) ==
        "t: model_type must be 2 (BPE), got 1");
}

TEST_CASE("tokenizer files: deep nesting, a string without end, merges in a ring") {
  std::string deep = "{\"model\":";
  for (int i = 0; i < 100'000; ++i) deep += '[';
  CHECK(refused(deep).starts_with("t: nesting too deep at byte "));
  CHECK(refused("{\"model\":\"" + std::string(1'000'000, 'a')) ==
        "t: unexpected end at byte 1000010");
  // Each pair of neighbours merges: encoding ends, because every merge shortens the text.
  const auto ring =
      tokenizer::read(file_with(R"("a":0,"b":1,"c":2,"ab":3,"bc":4,"ca":5,"abc":6,"abca":7)",
                                R"("a b","b c","c a","ab c","a bc","abc a","ab ca")"),
                      "t");
  CHECK(ring->encode("abcabcabca").size() < 6);
}

TEST_CASE("tokenizer files: replacements end, and make a text at most 64 times as long") {
  const std::string vocab = R"("a":0)";
  CHECK(refused(file_with(vocab, "", R"("decoder":{"type":"Metaspace","replacement":""},)")) ==
        "t: decoder: the text to replace must not be empty");
  const auto replace = [](const std::string& to) {
    return R"({"type":"Replace","pattern":{"String":"a"},"content":")" + to + "\"}";
  };
  const auto normalizers = [&](const std::string& step, int n) {
    std::string all = step;
    for (int i = 1; i < n; ++i) all += "," + step;
    return R"("normalizer":{"type":"Sequence","normalizers":[)" + all + "]},";
  };
  CHECK(refused(file_with(vocab, "", normalizers(replace(std::string(65, 'a')), 1))) ==
        "t: normalizer: a replacement must have at most 64 bytes, got 65");
  CHECK(refused(file_with(vocab, "", normalizers(replace("aaaaaaaaa"), 2))) ==
        "t: normalizer: replacements must make a text at most 64 times as long, got 81");
  CHECK(refused(file_with(vocab, "", normalizers(replace("a"), 17))) ==
        "t: normalizer: more than 16 steps");
  CHECK(refused(file_with(vocab, "", normalizers(replace("a"), 16))) == "no error");
}

TEST_CASE("tokenizer files: parts in any number") {
  const auto many = [](const std::string& part, int n) {
    std::string all = part;
    for (int i = 1; i < n; ++i) all += "," + part;
    return all;
  };
  const auto digits = [&](int n) {
    return R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)" +
           many(R"({"type":"Digits"})", n) + "]},";
  };
  CHECK(refused(file_with(R"("a":0)", "", digits(100'000))) ==
        "t: pre_tokenizer: more than 16 splits");
  CHECK(refused(file_with(R"("a":0)", "", digits(16))) == "no error");
  const auto around = [&](int n) {
    return R"("post_processor":{"type":"TemplateProcessing","single":[)" +
           many(R"({"SpecialToken":{"id":"a"}})", n) + R"(],"special_tokens":{"a":{"ids":[0]}}},)";
  };
  CHECK(refused(file_with(R"("a":0)", "", around(65))) ==
        "t: post_processor: at most 64 tokens around a text, got 65");
  CHECK(refused(file_with(R"("a":0)", "", around(64))) == "no error");
  CHECK(refused(file_with(
            R"("a":0)", "",
            R"("added_tokens":[{"id":1,"content":")" + std::string(1025, 'x') + R"("}],)")) ==
        "t: an added token must have 1 to 1024 bytes, got 1025");
}

TEST_CASE("tokenizer files: cuts that the reference makes elsewhere") {
  const auto cut = [](const std::string& a, const std::string& b) {
    return refused(
        file_with(R"("a":0)", "",
                  R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)" + a + "," + b + "]},"));
  };
  const std::string digits = R"({"type":"Digits"})",
                    bytes = R"({"type":"ByteLevel","add_prefix_space":false})",
                    marks = R"({"type":"Metaspace","replacement":"▁"})",
                    split =
                        R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":"\\p{N}"}})";
  const std::string see = " is not supported; see docs/tokenizers.md";
  CHECK(cut(bytes, digits) == "t: pre_tokenizer Digits after ByteLevel" + see);
  CHECK(cut(bytes, split) == "t: pre_tokenizer Split after ByteLevel" + see);
  CHECK(cut(digits, marks) == "t: pre_tokenizer Metaspace after another one" + see);
  CHECK(cut(marks, digits) == "no error");
  CHECK(cut(split, bytes) == "no error");
  // \d are decimal digits, not all numbers.
  CHECK(cut(R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":"\\d"}})", bytes)
            .starts_with("t: the expression \"\\\\d\" is not known"));
}

TEST_CASE("tokenizer files: errors show at most 80 bytes of a text") {
  std::string e = refused(file_with(R"("a":0)", "\"a " + std::string(1000, 'b') + "\""));
  CHECK(e == "t: merge 0: '" + std::string(80, 'b') + "...' is not in the vocabulary");
  e = refused(R"({"model":{"type":"x)" + std::string(78, 'b') + R"(\u00e9"}})");
  CHECK(e == "t: model x" + std::string(78, 'b') + "... is not supported; see docs/tokenizers.md");
}

TEST_CASE("tokenizer files: .model with hostile fields") {
  const auto varint = [](std::size_t n) {
    std::string out;
    for (; n >= 128; n >>= 7) out += static_cast<char>((n & 127) | 128);
    return out + static_cast<char>(n);
  };
  const auto field = [&](int number, const std::string& bytes) {
    return static_cast<char>(number << 3 | 2) + varint(bytes.size()) + bytes;
  };
  const std::string number_two = "\x20\x02";                           // field 4
  const std::string kind = field(2, "\x18\x02");                       // BPE
  const std::string rest = kind + field(3, std::string("\x20\0", 2));  // keeps spaces
  const auto piece = [&](const std::string& text, const std::string& more = "") {
    return field(1, field(1, text) + more);
  };
  const std::string unknown = piece("u", "\x18\x02");
  CHECK(refused(unknown + rest) == "no error");
  CHECK(refused(piece(std::string(4097, 'a')) + unknown + rest) ==
        "t: a piece must have 1 to 4096 bytes, got 4097");
  CHECK(refused(piece("a", std::string("\x15\0\0\xC0\x7F", 5)) + unknown + rest) ==
        "t: the score of a piece must be finite, got nan");
  CHECK(refused(unknown + field(2, number_two + field(3, "")) + rest.substr(kind.size())) ==
        "t: model_type must be 2 (BPE), got 0");
  CHECK(refused(piece(std::string(1025, 'a'), "\x18\x03") + unknown + rest) ==
        "t: an added token must have 1 to 1024 bytes, got 1025");
}

TEST_CASE("tokenizer files: paths") {
  const test::TempFolder folder;
  CHECK(error_of([&] { tokenizer::open(folder / "x"); }) ==
        folder / "x" + ": is no tokenizer file");
  CHECK(error_of([&] { tokenizer::open(folder.path()); }) ==
        folder.path() + ": has no tokenizer.json, tekken.json or tokenizer.model");
  io::write_file(folder / "tokenizer.json", io::read_file(kFolder + "gpt2.json"));
  CHECK(tokenizer::open(folder.path())->vocab() == 420);
  // A file of 10 GB is refused by its size; this one takes no space.
  io::write_file(folder / "big.json", "{");
  CHECK(::truncate((folder / "big.json").c_str(), 10'000'000'000) == 0);
  CHECK(error_of([&] { tokenizer::open(folder / "big.json"); }) ==
        folder / "big.json" + ": a tokenizer has at most 67108864 bytes, got 10000000000");
}

}  // namespace weft::tokenizer_files_test
