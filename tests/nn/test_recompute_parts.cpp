// --recompute by parts and by blocks: which bytes each saves, and that no bit changes.
#include <doctest/doctest.h>

#include <string>

#include "weft/core/allocator.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::recompute_parts_test {
using nn::Arch;
using nn::Gpt;
using nn::GptConfig;
using nn::Recompute;

namespace {

constexpr std::int64_t kBatch = 3;

GptConfig config(Arch arch) {
  return {.arch = arch, .layers = 3, .heads = 4, .dim = 32, .seq = 24, .vocab = 40, .dropout = 0.1};
}

GptConfig with_experts() {
  GptConfig c = config(Arch::llama);
  c.moe = {.experts = 4,
           .router = {.balance = {{nn::Balance::aux, 0.01}}, .capacity_factor = 1.5},
           .ffn = 48,
           .shared_ffn = 48};
  return c;
}

GptConfig with_latents() {
  GptConfig c = config(Arch::llama);
  c.attention = nn::AttentionKind::mla;
  c.mtp = {.depths = 1};
  return c;
}

struct Step {
  TensorList gradients;
  std::int64_t kept = 0, peak = 0, left = 0;
};

Step step_of(GptConfig c, Recompute how, Device device = kCpu) {
  c.recompute = how;
  const nn::DeviceScope place(device, DType::f32);
  Gpt model(c);
  if (!device.is_meta()) nn::init(model, 3);
  const Tensor ids = device.is_meta() ? Tensor::empty({kBatch, c.seq}, DType::i32, device)
                                      : test::random({kBatch, c.seq}, 4, DType::i32);
  Step out;
  const std::int64_t before = memory_stats(device).live_bytes;
  {
    const RandomScope random({.seed = 1, .step = 7});
    reset_peak(device);
    Tape tape;
    const Tensor loss = model.losses(ids, ids).total();
    out.kept = memory_stats(device).live_bytes - before;
    loss.backward();
    out.peak = memory_stats(device).peak_bytes - before;
  }
  out.left = memory_stats(device).live_bytes - before;
  for (const Tensor& p : model.parameters()) out.gradients.push_back(p.grad());
  return out;
}

std::int64_t bytes(std::int64_t columns) {
  return size_class_bytes(kBatch * config(Arch::gpt2).seq * columns * 4);
}

}  // namespace

TEST_CASE("recompute parts: every part saves exactly its bytes") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    const GptConfig c = config(arch);
    const std::int64_t none = step_of(c, Recompute::none).kept;
    const auto saved = [&](Recompute r) { return none - step_of(c, r).kept; };
    CHECK(saved(Recompute::norms) == 2 * c.layers * bytes(c.dim));
    CHECK(saved(Recompute::attention) == c.layers * bytes(c.dim));
    CHECK(saved(Recompute::mlp) == c.layers * bytes(c.ffn_dim()));
    CHECK(saved(Recompute::experts | Recompute::gathered) == 0);
    CHECK(saved(Recompute::selective | Recompute::attention) ==
          c.layers * (3 * bytes(c.dim) + bytes(c.ffn_dim())));
  }
  const GptConfig c = with_experts();
  const auto rows = static_cast<std::int64_t>(
      weft::expert_capacity(kBatch * c.seq, 4, c.moe.router.route.topk, 1.5) * 4);
  CHECK(step_of(c, Recompute::none).kept - step_of(c, Recompute::experts).kept ==
        c.layers * (size_class_bytes(rows * 48 * 4) + bytes(48)));
}

TEST_CASE("recompute parts: gradients do not change, and the meta device knows the peak") {
  for (const GptConfig& c : {config(Arch::gpt2), with_experts(), with_latents()}) {
    const Step none = step_of(c, Recompute::none);
    for (const Recompute r :
         {Recompute::norms, Recompute::attention, Recompute::mlp, Recompute::experts,
          Recompute::selective, Recompute::selective | Recompute::attention, Recompute::full}) {
      CAPTURE(std::string(word_of(nn::kRecomputeWords, r)));
      const Step got = step_of(c, r), planned = step_of(c, r, kMeta);
      for (int i = 0; i < none.gradients.size(); ++i)
        CHECK(test::different_bits(got.gradients[i], none.gradients[i]) == "");
      CHECK(got.left == none.left);
      CHECK(planned.kept == got.kept);
      CHECK(planned.peak == got.peak);
      CHECK(got.peak <= none.peak);
    }
  }
}

TEST_CASE("recompute parts: blocks are chosen by number") {
  GptConfig c = config(Arch::gpt2);
  const std::int64_t none = step_of(c, Recompute::none).kept;
  const auto saved = [&](Recompute r, std::int64_t every, std::int64_t first) {
    c.recompute_every = every;
    c.recompute_layers = first;
    return none - step_of(c, r).kept;
  };
  for (const Recompute r : {Recompute::norms, Recompute::full}) {
    const std::int64_t one = saved(r, 1, 1);
    CHECK(one > 0);
    CHECK(saved(r, 2, 0) == saved(r, 2, 3));
    CHECK(saved(r, 3, 0) == one);
    CHECK(saved(r, 2, 1) == one);
    CHECK(saved(r, 1, 2) > one);
    CHECK(saved(r, 1, 0) > saved(r, 1, 2));
  }
  CHECK(saved(Recompute::norms, 2, 0) == 2 * saved(Recompute::norms, 1, 1));
}

// 16 C numbers per token and layer, of which both norms and the activation are 6 C.
TEST_CASE("recompute parts: selective saves 35 % of the activations of GPT-2 124M") {
  const auto kept = [](Recompute r) {
    const nn::DeviceScope place(kMeta, DType::f32);
    const Gpt model(
        {.layers = 12, .heads = 12, .dim = 768, .seq = 1024, .vocab = 50257, .recompute = r});
    const Tensor ids = Tensor::empty({4, 1024}, DType::i32, kMeta);
    const std::int64_t before = memory_stats(kMeta).live_bytes;
    Tape tape;
    const Tensor h = model.hidden(ids);
    return static_cast<double>(memory_stats(kMeta).live_bytes - before);
  };
  const double none = kept(Recompute::none);
  CHECK(kept(Recompute::selective) < 0.65 * none);
  CHECK(kept(Recompute::selective | Recompute::attention) < 0.6 * none);
}

}  // namespace weft::recompute_parts_test
