// Texts that share a pass through the model have the bits that each has alone.
#include <doctest/doctest.h>

#include <vector>

#include "weft/autograd/view.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::gpt_rows_test {
namespace {

Tensor tokens(std::int64_t n, std::uint64_t seed) {
  return test::random_in({1, n}, 0, 300, seed).to(DType::i32);
}

}  // namespace

TEST_CASE("gpt: up to eight texts that decode together have the bits of each alone") {
  for (const nn::Arch arch : {nn::Arch::gpt2, nn::Arch::llama})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(dtype);
      const nn::GptConfig config{
          .arch = arch, .layers = 2, .heads = 4, .dim = 128, .seq = 16, .vocab = 300};
      nn::Gpt model(config);
      model.to(dtype);
      std::vector<nn::KvCache> together, alone;
      std::vector<nn::KvCache*> rows;
      for (int i = 0; i < 8; ++i) {
        together.emplace_back(config, 1, 16, dtype);
        alone.emplace_back(config, 1, 16, dtype);
      }
      for (int i = 0; i < 8; ++i) {
        rows.push_back(&together[static_cast<std::size_t>(i)]);
        const Tensor prompt = tokens(1 + i, 7);
        for (nn::KvCache* cache : {rows.back(), &alone[static_cast<std::size_t>(i)]})
          model.decode(prompt, *cache);
      }
      for (int step = 0; step < 4; ++step) {
        if (step > 1) rows.pop_back();  // a text that ends leaves
        TensorList next, want;
        for (std::size_t i = 0; i < rows.size(); ++i) {
          next.push_back(tokens(1, 20 + 10 * static_cast<std::uint64_t>(step) + i));
          want.push_back(model.decode(next[static_cast<int>(i)], alone[i]));
        }
        CHECK(test::different_bits(model.decode(cat(next), rows), cat(want)) == "");
      }
    }
}

}  // namespace weft::gpt_rows_test
