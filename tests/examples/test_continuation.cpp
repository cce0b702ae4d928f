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

Tokens go_on(examples::Continuation& text, int count, std::uint64_t first_draw = 0) {
  Tokens out;
  for (int i = 0; i < count; ++i)
    out.push_back(text.next({.temperature = 2}, 1, first_draw + static_cast<std::uint64_t>(i)));
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

TEST_CASE("continuation: several texts together go on as each alone") {
  for (const nn::Arch arch : {nn::Arch::gpt2, nn::Arch::llama})
    for (const char* pattern : {"a", "da"}) {
      CAPTURE(pattern);
      nn::GptConfig c = small(pattern);
      c.arch = arch;
      const nn::Gpt model(c);
      const Tokens prompts[] = {{1, 2, 3}, {4}, {5, 6, 7, 8, 9}, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {30}};
      constexpr int kCount = 40;  // windows are full at different times, and move
      std::vector<examples::Continuation> texts;
      for (const Tokens& prompt : prompts) {
        texts.emplace_back(model);
        texts.back().append(prompt);
      }
      std::vector<Tokens> got(std::size(prompts));
      for (std::uint64_t i = 0; i < kCount; ++i) {
        std::vector<examples::Continuation::Turn> turns;
        std::vector<std::size_t> of;
        for (std::size_t k = 0; k < texts.size(); ++k)
          if (i < kCount - 7 * k) {  // rows leave one after the other
            turns.push_back({&texts[k], i + 100 * k});
            of.push_back(k);
          }
        const Tokens next = examples::Continuation::next_of(turns, {.temperature = 2}, 1);
        for (std::size_t k = 0; k < of.size(); ++k) got[of[k]].push_back(next[k]);
      }
      for (std::size_t k = 0; k < texts.size(); ++k) {
        examples::Continuation alone(model);
        alone.append(prompts[k]);
        CHECK(got[k] == go_on(alone, kCount - 7 * static_cast<int>(k), 100 * k));
      }
    }
}

}  // namespace weft::continuation_test
