#include <doctest/doctest.h>

#include <string>

#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/io/json.h"
#include "weft/tests/data_support.h"
#include "weft/tests/support.h"
#include "weft/tokenizer/tokenizer.h"
#include "weft/tokenizer/train_bpe.h"

namespace weft::train_bpe_test {
using test::error_of;
using namespace tokenizer;

namespace {

const std::string kFolder = WEFT_FIXTURES "/tokenizers/";

std::string content_of(const std::string& name) { return io::read_file(kFolder + name); }

}  // namespace

TEST_CASE("train_bpe: the merges of the reference") {
  BpeTrainer trainer({.vocab = 421});
  trainer.add(content_of("expected.json"));
  const io::Json ours = io::Json::parse(trainer.to_json());
  CHECK(ours.at("model").at("merges").dump() == io::Json::parse(content_of("trained.json")).dump());
}

TEST_CASE("train_bpe: the file opens, and its special token has the last id") {
  BpeTrainer trainer({.vocab = 300, .special = {"<|endoftext|>", "<|pad|>"}});
  const std::string text = "the cat sat on the mat, and the cat's hat sat on the cat\n\xFF\xFE é";
  trainer.add(text);
  const auto t = read(trainer.to_json(), "t");
  CHECK(t->vocab() == 268);  // no other pair occurs twice
  CHECK(t->find("<|pad|>") == 267);
  CHECK(t->is_special(267));
  const test::Ints ids = t->encode(text);
  CHECK(t->decode(ids) == text);
  CHECK(ids.size() < 40);
  CHECK(t->encode("x<|pad|>", {.added_tokens = true}).back() == 267);
}

TEST_CASE("train_bpe: ties go to the pair of smaller ids, overlaps count") {
  BpeTrainer trainer({.vocab = 259, .least_count = 1, .special = {}});
  trainer.add("zzzz yx");  // zz three times; of the pairs that occur once "yx" has the smallest ids
  const io::Json merges = io::Json::parse(trainer.to_json()).at("model").at("merges");
  CHECK(merges.dump() == R"([["z","z"],["y","x"],["Ġ","yx"]])");
}

TEST_CASE("train_bpe: wrong settings") {
  CHECK(error_of([] { BpeTrainer({.vocab = 256}); }) ==
        "train_tokenizer: vocab must be at least 257, got 256");
  CHECK(error_of([] { BpeTrainer({.vocab = 3'000'000'000}); }) ==
        "train_tokenizer: vocab must be at most 2147483647, got 3000000000");
  CHECK(error_of([] {
          BpeTrainer({.special = {"x", ""}});
        }) == "train_tokenizer: a special token must have 1 to 1024 bytes, got 0");
  CHECK(error_of([] { BpeTrainer({.special = {std::string(1025, 'x')}}); }) ==
        "train_tokenizer: a special token must have 1 to 1024 bytes, got 1025");
  CHECK(error_of([] {
          BpeTrainer({.special = {"x", "y", "x"}});
        }) == "train_tokenizer: special tokens must differ, got 'x' twice");
  CHECK(error_of([] { BpeTrainer({.least_count = 0}); }) ==
        "train_tokenizer: the least count must be at least 1, got 0");
}

}  // namespace weft::train_bpe_test
