// Text to tokens and back, without the library of tensors. usage: tokens FILE [TEXT]
#include <cstdio>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/tokenizer/tokenizer.h"

int main(int argc, char** argv) try {
  const auto t = weft::tokenizer::open(argc > 1 ? argv[1] : "bytes");
  const std::vector<std::int32_t> ids = t->encode(argc > 2 ? argv[2] : "It is a truth");
  for (const std::int32_t id : ids) std::printf("%d ", id);
  std::printf("\n%s\n", t->decode(ids).c_str());
  return 0;
} catch (const weft::Error& e) {
  std::fprintf(stderr, "tokens: %s\n", e.what());
  return 2;
}
