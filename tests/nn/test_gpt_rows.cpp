// Texts that share a pass through the model have the bits that each has alone.
#include <doctest/doctest.h>

#include <vector>

#include "weft/autograd/view.h"
#include "weft/core/cpu/simd.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::gpt_rows_test {
namespace {

Tensor tokens(std::int64_t n, std::uint64_t seed) {
  return test::random_in({1, n}, 0, 300, seed).to(DType::i32);
}

// Each with layers of 64 inputs and more.
std::vector<nn::GptConfig> models() {
  const nn::GptConfig gpt2{.layers = 2, .heads = 4, .dim = 128, .seq = 16, .vocab = 300};
  std::vector<nn::GptConfig> all(6, gpt2);
  for (std::size_t i = 1; i < all.size(); ++i) all[i].arch = nn::Arch::llama;
  all[2].qk_norm = all[2].attn_gate = true;
  all[2].kv_heads = 2;
  all[2].window = 4;
  all[3].moe.experts = 4;
  all[3].moe.ffn = all[3].moe.shared_ffn = 64;
  all[3].moe.bias = all[3].moe.shared_gate = true;
  all[4].attention = nn::AttentionKind::mla;
  all[4].mla.kv_lora = 64;
  all[5].pattern = "da";
  return all;
}

}  // namespace

TEST_CASE("gpt: up to eight texts that decode together have the bits of each alone") {
  if (!simd().panels<float>().fast) {
    MESSAGE("skipped: needs AVX2, without which several rows are no dot products");
    return;
  }
  const std::vector<nn::GptConfig> all = models();
  for (const nn::GptConfig& config : all)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(message("model {}, {}", &config - all.data(), dtype));
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
