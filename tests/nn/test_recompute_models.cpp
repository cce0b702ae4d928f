// X1: recomputing changes no bit of a loss or gradient and lowers peak memory.
#include <doctest/doctest.h>

#include <string>

#include "weft/core/allocator.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::recompute_models_test {
using nn::Arch;
using nn::Gpt;
using nn::GptConfig;
using nn::Recompute;

namespace {

struct Step {
  Tensor loss;
  TensorList gradients;
  std::int64_t peak = 0, left = 0;  // above the level at the start
};

// Large enough that the layers' saved tensors dominate memory.
GptConfig config(const std::string& kind) {
  GptConfig c = {.arch = kind == "gpt2" || kind == "gpt2 experts" ? Arch::gpt2 : Arch::llama,
                 .layers = 4,
                 .heads = 4,
                 .dim = 32,
                 .seq = 64,
                 .vocab = 40,
                 .dropout = 0.1};
  if (kind == "mtp") c.mtp = {.depths = 2};
  if (kind == "repeated mtp") c.mtp = {.depths = 3, .repeated = true};
  if (kind == "delta") c.pattern = "d";
  if (kind == "hybrid") {
    c.pattern = "dda";
    c.kv_heads = 2;
  }
  if (kind == "latent") {
    c.attention = nn::AttentionKind::mla;
    c.mla.v_head = 5;
  }
  if (kind.ends_with("experts"))
    c.moe = {.experts = 8,
             .router = {.balance = {{nn::Balance::aux, 0.01}}, .z_loss = 0.001},
             .ffn = 48,
             .shared_ffn = 48};
  if (kind == "all experts") {
    c.pattern = "da";
    c.mtp = {.depths = 1};
    c.moe.router.route.score = RouterScore::sigmoid;
    c.moe.router.expert_bias = true;
    c.moe.shared_gate = true;
  }
  if (kind == "padded experts") {
    c.moe.router.capacity_factor = 1.25;
    c.moe.latent = 16;
  }
  return c;
}

Step step_of(GptConfig c, Recompute how) {
  c.recompute = how;
  Gpt model(c);
  nn::init(model, 3);
  const Tensor ids = test::random({4, c.seq}, 4, DType::i32);
  Step out;
  for (int i = 0; i < 2; ++i) {  // the second pass already holds all persistent memory
    const RandomScope random({.seed = 1, .step = 7});
    model.zero_grad();
    reset_peak();
    const std::int64_t before = memory_stats().live_bytes;
    Tape tape;
    out.loss = model.losses(ids, ids).total();
    out.loss.backward();
    out.peak = memory_stats().peak_bytes - before;
    if (i > 0) out.left = memory_stats().live_bytes - before;
  }
  for (const Tensor& p : model.parameters()) out.gradients.push_back(p.grad());
  return out;
}

}  // namespace

TEST_CASE("X1: recomputing gives the same gradients with less memory") {
  for (const std::string kind :
       {"gpt2", "llama", "latent", "mtp", "repeated mtp", "delta", "hybrid", "gpt2 experts",
        "experts", "padded experts", "all experts"}) {
    CAPTURE(kind);
    const Step none = step_of(config(kind), Recompute::none);
    const Step some = step_of(config(kind), Recompute::selective);
    const Step full = step_of(config(kind), Recompute::full);
    CHECK(test::different_bits(some.loss, none.loss) == "");
    CHECK(test::different_bits(full.loss, none.loss) == "");
    REQUIRE(none.gradients.size() == full.gradients.size());
    for (int i = 0; i < none.gradients.size(); ++i) {
      CHECK(test::different_bits(some.gradients[i], none.gradients[i]) == "");
      CHECK(test::different_bits(full.gradients[i], none.gradients[i]) == "");
    }
    // Only the gradients stay; no region keeps anything.
    CHECK(some.left == none.left);
    CHECK(full.left == none.left);
    // MLP activations are the smaller part of a layer's saved tensors.
    CHECK(static_cast<double>(some.peak) < 0.96 * static_cast<double>(none.peak));
    CHECK(static_cast<double>(full.peak) < 0.7 * static_cast<double>(none.peak));
  }
}

}  // namespace weft::recompute_models_test
