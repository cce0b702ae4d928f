// Texts that a model goes on with: what a cache keeps never changes them.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include "weft/examples/common/continuation.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::continuation_test {
namespace {

using Tokens = std::vector<std::int32_t>;

nn::GptConfig small(const char* pattern) {
  return {.arch = nn::Arch::llama,
          .layers = 2,
          .heads = 2,
          .dim = 16,
          .seq = 16,
          .vocab = 40,
          .pattern = pattern};
}

Tokens go_on(examples::Continuation& text, int count) {
  Tokens out;
  for (int i = 0; i < count; ++i)
    out.push_back(text.next({.temperature = 2}, 1, static_cast<std::uint64_t>(i)));
  return out;
}

}  // namespace

TEST_CASE("continuation: a replaced text goes on like a new one") {
  for (const char* pattern : {"a", "da"}) {
    CAPTURE(pattern);
    const nn::Gpt model(small(pattern));
    const Tokens texts[] = {{1, 2, 3}, {1, 2, 3, 4, 5}, {1, 2, 9}, {1, 2, 9}, {7}, {7, 8, 9, 10}};
    examples::Continuation text(model);
    for (const int count : {3, 14, 30})  // 14 and 30: the window is full, and moves
      for (const Tokens& t : texts) {
        examples::Continuation fresh(model);
        fresh.append(t);
        text.set(t);
        CHECK(go_on(text, count) == go_on(fresh, count));
      }
  }
}

}  // namespace weft::continuation_test
