// Encodes texts for scripts/tokenizer_oracle.py. Each text comes as a uint32 length and its bytes;
// its ids go out as a uint32 count and int32 numbers, followed by a uint32 length and the decoded
// bytes. usage: tokenizer_program FILE [--added] [--split REGEX]
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/tokenizer/tokenizer.h"

namespace {

bool read_exactly(void* to, std::size_t n) { return std::fread(to, 1, n, stdin) == n; }

void write_counted(const void* from, std::size_t count, std::size_t width) {
  const auto n = static_cast<std::uint32_t>(count);
  std::fwrite(&n, sizeof n, 1, stdout);
  std::fwrite(from, width, count, stdout);
}

}  // namespace

int main(int argc, char** argv) try {
  weft::check(argc >= 2, "tokenizer_program: name a tokenizer file");
  weft::tokenizer::EncodeOptions encode;
  weft::tokenizer::OpenOptions open;
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--added") == 0) encode.added_tokens = true;
    if (std::strcmp(argv[i], "--split") == 0 && i + 1 < argc) open.split = argv[++i];
  }
  const auto tokenizer = weft::tokenizer::open(argv[1], open);
  std::string text;
  for (std::uint32_t n = 0; read_exactly(&n, sizeof n);) {
    text.resize(n);
    if (!read_exactly(text.data(), n)) return 1;
    const std::vector<std::int32_t> ids = tokenizer->encode(text, encode);
    write_counted(ids.data(), ids.size(), sizeof ids[0]);
    const std::string decoded = tokenizer->decode(ids, {.special = true});
    write_counted(decoded.data(), decoded.size(), 1);
    std::fflush(stdout);
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "tokenizer_program: %s\n", e.what());
  return 2;
}
