// Reads damaged copies of a tokenizer file, and encodes with what is still valid and describes it
// for llama.cpp: only Error may be thrown. usage: fuzz_tokenizer FILE RUNS [SEED]. With clang and
// -DWEFT_LIBFUZZER -fsanitize=fuzzer it is a target of libFuzzer, whose corpus is
// tests/fixtures/tokenizers.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "weft/core/error.h"
#include "weft/tests/mutations.h"
#include "weft/tokenizer/tokenizer.h"
#include "weft/tokenizer/vocabulary.h"

namespace {

constexpr const char* kSplit =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Whether the file was read.
bool try_file(const std::string& content) {
  try {
    const auto t = weft::tokenizer::read(content, "t", {.split = kSplit});
    const std::string text =
        "It's 12 <|end|> <think> e\u0301\n\xFF [INST]" + content.substr(0, 200);
    const auto ids = t->encode(text, {.added_tokens = true, .around = true});
    t->decode(ids, {.special = true});
    weft::tokenizer::StreamDecoder stream(*t);
    for (const std::int32_t id : ids) stream.next(id);
    // What a GGUF file says of it takes as long as reading does.
    if (content.size() % 8 == 0) weft::tokenizer::vocabulary_of(*t, t->vocab());
    return true;
  } catch (const weft::Error&) {
    return false;
  }
}

}  // namespace

#ifdef WEFT_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try_file(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
#else
int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: fuzz_tokenizer FILE RUNS [SEED]\n", stderr);
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  std::ostringstream content;
  content << file.rdbuf();
  const std::string seed = content.str();
  weft::test::Mutations mutations(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  const long runs = std::strtol(argv[2], nullptr, 10);
  long read = 0;
  if (!try_file(seed)) return 1;
  for (long i = 0; i < runs; ++i) read += try_file(mutations.of(seed));
  std::printf("%ld damaged copies, %ld of them still read\n", runs, read);
  return 0;
}
#endif
