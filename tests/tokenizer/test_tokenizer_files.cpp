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
          .starts_with("t: the expression \"x\" is not known; known: gpt2, cl100k, qwen2, "));
  CHECK(refused(R"({"model":{"type":"Unigram"}})") ==
        "t: model Unigram is not supported; see docs/tokenizers.md");
  CHECK(
      refused(R"({"pre_tokenizer":{"type":"ByteLevel"},"model":{"vocab":{"a":0},"merges":[]}})") ==
      "t: has no token for byte 0, so that text would be lost");
  CHECK(refused("YQ== 0\nYQ== 1\n") == "t: two ranks are the same token: see rank 1");
  CHECK(refused("YQ== x\n") == "t: line 1: must be a token in base64, a space and its rank");
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
