// Which layers of a model multiply in FP8, and the state that they keep.
#include <doctest/doctest.h>

#include "weft/core/allocator.h"
#include "weft/core/profile.h"
#include "weft/core/random.h"
#include "weft/nn/fp8.h"
#include "weft/nn/gpt.h"
#include "weft/optim/adamw.h"
#include "weft/tests/support.h"

namespace weft::nn_fp8_test {

namespace {

using fp8::Recipe;
using fp8::Scaling;
using nn::Gpt;
using test::different_bits;
using test::error_of;

nn::GptConfig config(bool sparse) {
  nn::GptConfig c{.arch = sparse ? nn::Arch::llama : nn::Arch::gpt2,
                  .layers = 2,
                  .heads = 2,
                  .dim = 32,
                  .ffn = 64,
                  .seq = 16,
                  .vocab = 37};
  if (!sparse) return c;
  c.mtp.depths = 1;
  c.moe = {.experts = 4,
           .router = {.route = {.topk = 2, .score = RouterScore::sigmoid}, .expert_bias = true},
           .ffn = 16,
           .shared_ffn = 16};
  c.moe_layers = {0, 1};
  return c;
}

Gpt model_of(const nn::GptConfig& c, const Recipe& recipe) {
  Gpt model(c);
  nn::init(model, 1);
  model.to(DType::bf16);
  nn::prepare_fp8(model, recipe);
  return model;
}

int count(const std::string& text, const std::string& word) {
  int n = 0;
  for (auto at = text.find('\n' + word + ' '); at != std::string::npos;
       at = text.find('\n' + word + ' ', at + 1))
    ++n;
  return n;
}

Tensor ids_of(std::uint64_t seed) { return test::random({2, 16}, seed, DType::i32); }

// The gradients of one step, after the loss.
TensorList step(const Gpt& model, const std::optional<Recipe>& recipe, std::uint64_t seed = 5) {
  const fp8::Autocast scope(recipe);
  const RandomScope random({.seed = 1, .step = 1});
  Tape tape;
  const Tensor ids = ids_of(seed), loss = model.losses(ids, ids).total();
  TensorList all{loss.detach()};
  TensorList wanted;
  for (const NamedTensor& p : model.named_parameters()) wanted.push_back(p.tensor);
  for (const Tensor& g : tape.gradients(loss, wanted)) all.push_back(g);
  return all;
}

}  // namespace

TEST_CASE("fp8: which products of a model are in FP8") {
  for (const bool sparse : {false, true}) {
    const Gpt model = model_of(config(sparse), {});
    const fp8::Autocast scope(Recipe{});
    const RandomScope random({.seed = 1, .step = 1});
    Tape tape;
    const Tensor ids = ids_of(5);
    (void)model.losses(ids, ids);
    const std::string ops = '\n' + tape.print();
    CAPTURE(ops);
    // Attention 2, MLP 2. With experts: block 1 has a shared MLP and two grouped products, and MTP
    // is such a block with a projection.
    CHECK(count(ops, "fp8_linear") == (sparse ? 4 + 2 * 4 + 1 : 8));
    CHECK(count(ops, "fp8_grouped_linear") == (sparse ? 4 : 0));
    CHECK(count(ops, "linear") == 0);
    CHECK(count(ops, "mlp") == 0);
    CHECK(count(ops, "linear_cross_entropy") == (sparse ? 2 : 1));
  }
}

TEST_CASE("fp8: norms, activations and sorted tokens are rounded in the pass that makes them") {
  for (const bool sparse : {false, true})
    for (const Scaling scaling : {Scaling::delayed, Scaling::block}) {
      const Recipe recipe{.scaling = scaling};
      const Gpt model = model_of(config(sparse), recipe);
      const fp8::Autocast scope(recipe);
      const RandomScope random({.seed = 1, .step = 1});
      Tape tape;
      Profiler profile;
      profile.start("forward");
      const Tensor ids = ids_of(5);
      (void)model.losses(ids, ids);
      profile.stop();
      std::int64_t passes = 0;
      for (const Profiler::Entry& e : profile.entries())
        if (e.kernel.find("quantize") != std::string::npos && !e.kernel.starts_with("dequantize"))
          passes += e.work.calls;
      // Weights, and the inputs that another op makes: attention's output; with experts also the
      // shared expert's, which reads the tokens after the experts did, and MTP's projection.
      const int weights = sparse ? 17 : 8, inputs = sparse ? 3 + 2 + 1 : 2;
      CAPTURE(sparse);
      CHECK(passes == weights + inputs + (scaling == Scaling::block ? weights : 0));
    }
}

TEST_CASE("fp8: outside of a scope the bits are those without FP8") {
  const Gpt plain = model_of(config(true), {});
  const Gpt prepared = model_of(config(true), {.scaling = Scaling::delayed});
  step(prepared, Recipe{.scaling = Scaling::delayed});
  const TensorList a = step(plain, std::nullopt), b = step(prepared, std::nullopt);
  for (int i = 0; i < a.size(); ++i) CHECK(different_bits(a[i], b[i]) == "");
}

TEST_CASE("fp8: recomputation changes no bit, for each recipe") {
  for (const bool sparse : {false, true})
    for (const Recipe& recipe :
         {Recipe{}, Recipe{.scaling = Scaling::delayed}, Recipe{.scaling = Scaling::block},
          Recipe{.backward = fp8::BackwardOverride::dequantized},
          Recipe{.backward = fp8::BackwardOverride::high_precision}}) {
      TensorList plain;
      for (const nn::Recompute how :
           {nn::Recompute::none, nn::Recompute::selective, nn::Recompute::full}) {
        nn::GptConfig c = config(sparse);
        c.recompute = how;
        Gpt model = model_of(c, recipe);
        nn::Fp8Step scales(model, recipe);
        step(model, recipe, 3);
        scales.finish();
        TensorList got = step(model, recipe);
        if (plain.empty()) {
          plain = got;
          continue;
        }
        CAPTURE(static_cast<int>(how));
        CAPTURE(static_cast<int>(recipe.scaling));
        for (int i = 0; i < plain.size(); ++i) {
          CAPTURE(i);
          CHECK(different_bits(got[i], plain[i]) == "");
        }
      }
    }
}

TEST_CASE("fp8: recomputed parts keep no codes of what is computed again") {
  const auto kept = [](const Recipe& recipe, nn::Recompute how) {
    nn::GptConfig c = config(false);
    c.recompute = how;
    const Gpt model = model_of(c, recipe);
    const fp8::Autocast scope(recipe);
    const Tensor ids = ids_of(5);
    std::int64_t bytes = 0;
    for (int i = 0; i < 2; ++i) {  // the second step has the codes of weights already
      const std::int64_t before = memory_stats().live_bytes;
      const RandomScope random({.seed = 1, .step = 1});
      Tape tape;
      const Tensor loss = model.losses(ids, ids).total();
      bytes = memory_stats().live_bytes - before;
    }
    return bytes;
  };
  const std::int64_t norms = 2 * 2 * size_class_bytes(32 * 32),
                     hidden = 2 * size_class_bytes(32 * 64);
  for (const Recipe& recipe :
       {Recipe{}, Recipe{.scaling = Scaling::delayed}, Recipe{.scaling = Scaling::block},
        Recipe{.backward = fp8::BackwardOverride::dequantized}}) {
    CAPTURE(static_cast<int>(recipe.scaling));
    const std::int64_t all = kept(recipe, nn::Recompute::none);
    CHECK(kept(recipe, nn::Recompute::norms) == all - norms);
    CHECK(kept(recipe, nn::Recompute::mlp) == all - hidden);
    CHECK(kept(recipe, nn::Recompute::selective) == all - norms - hidden);
  }
  // bf16 operands, which are kept as they are.
  const Recipe high{.backward = fp8::BackwardOverride::high_precision};
  CHECK(kept(high, nn::Recompute::selective) == kept(high, nn::Recompute::none) -
                                                    4 * size_class_bytes(2 * 32 * 32) -
                                                    2 * size_class_bytes(2 * 32 * 64));
}

TEST_CASE("fp8: delayed scales are buffers, which copies and dictionaries have") {
  const Recipe recipe{.scaling = Scaling::delayed, .history = 5};
  Gpt model = model_of(config(true), recipe);
  nn::Fp8Step scales(model, recipe);
  step(model, recipe);
  scales.finish();
  StateDict state = model.state_dict();
  CHECK(state.at("blocks.0.attn.qkv.fp8_history").shape() == Shape{5, 3});
  CHECK(state.at("blocks.1.moe.experts.down_fp8_scale").select(0, 2).item() > 1);
  CHECK(state.count("head.fp8_scale") == 0);
  Gpt other = model_of(config(true), recipe);
  other.load_state_dict(state);
  const Gpt copy = nn::clone(model);
  const TensorList want = step(model, recipe, 9);
  const Gpt* const both[] = {&other, &copy};
  for (const Gpt* const m : both) {
    const TensorList got = step(*m, recipe, 9);
    for (int i = 0; i < want.size(); ++i) CHECK(different_bits(got[i], want[i]) == "");
  }
}

TEST_CASE("fp8: the largest magnitudes of all ranks meet in one reduction") {
  const Recipe recipe{.scaling = Scaling::delayed, .history = 2};
  Gpt model = model_of(config(false), recipe);
  nn::Fp8Step scales(model, recipe);
  step(model, recipe);
  int calls = 0;
  scales.finish([&](const Tensor& amax) {
    ++calls;
    CHECK(amax.shape() == Shape{8, 3});
    amax.fill_(448);
  });
  CHECK(calls == 1);
  CHECK(model.state_dict().at("blocks.1.mlp.down.fp8_scale").select(0, 0).item() == 1);
  CHECK(model.state_dict().at("blocks.1.mlp.down.fp8_scale").select(0, 2).item() == 128);
}

TEST_CASE("fp8: a weight that the optimizer has written is rounded again") {
  const Recipe recipe;
  Gpt cached = model_of(config(false), recipe);
  optim::AdamW opt(cached.named_parameters(), {.lr = 0.05});
  const auto train = [&] {
    const fp8::Autocast scope(recipe);
    Tape tape;
    const Tensor ids = ids_of(5);
    cached.losses(ids, ids).total().backward();
  };
  train();
  opt.step();
  opt.zero_grad();
  Gpt fresh = model_of(config(false), recipe);
  fresh.load_state_dict(cached.state_dict());
  const TensorList a = step(cached, recipe), b = step(fresh, recipe);
  for (int i = 0; i < a.size(); ++i) CHECK(different_bits(a[i], b[i]) == "");
}

TEST_CASE("fp8: models that a recipe does not fit") {
  nn::GptConfig narrow = config(false);
  narrow.ffn = 40;
  CHECK(error_of([&] { model_of(narrow, {}); }) ==
        "fp8: blocks.0.mlp.up must have widths that are multiples of 16, got 32 inputs and 40 "
        "outputs");
  const Gpt bare = model_of(config(false), {});
  CHECK(error_of([&] { step(bare, Recipe{.scaling = Scaling::delayed}); }) ==
        "fp8_linear: delayed scales need a layer that keeps them, and this one does not; call "
        "nn::prepare_fp8(model, recipe) first");
}

}  // namespace weft::nn_fp8_test
