// Steps of models: gradients, losses, recomputing and dropout.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/core/random.h"
#include "weft/tests/gpt_models.h"
#include "weft/tests/gpt_support.h"
#include "weft/tests/support.h"

namespace weft::gpt_test {

namespace {

// What real checkpoints add to attention and norms.
std::vector<GptConfig> variants(const GptConfig& llama) {
  std::vector<GptConfig> all(3, llama);
  all[0].qk_norm = all[0].qk_norm_joint = true;
  all[0].clip_qkv = 0.7;
  all[1].attn_gate = all[1].zero_centered_norm = all[1].qk_norm = true;
  all[1].head_size = 8;
  all[1].rotary_dim = 2;
  all[2].window = 3;
  all[2].pattern = "aw";
  all[2].clip_qkv = 0.7;
  return all;
}

// Loss and gradients of one step.
struct Step {
  Tensor loss;
  NamedTensors gradients;
};
Step run(Gpt& model, const Tensor& ids, const Tensor& targets) {
  Tape tape;
  Step out{model.loss(model(ids), targets), {}};
  out.loss.backward();
  for (const NamedTensor& p : model.named_parameters())
    out.gradients.push_back({p.name, p.tensor.grad()});
  model.zero_grad();
  return out;
}

std::string differences(const Step& a, const Step& b) {
  if (const std::string d = test::different_bits(a.loss, b.loss); !d.empty()) return "loss: " + d;
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    if (!a.gradients[i].tensor.defined() || !b.gradients[i].tensor.defined())
      return a.gradients[i].name + ": none";
    if (const std::string d = test::different_bits(a.gradients[i].tensor, b.gradients[i].tensor);
        !d.empty())
      return a.gradients[i].name + ": " + d;
  }
  return "";
}

}  // namespace

TEST_CASE("gpt: the gradient of a tied weight sums both uses") {
  GptConfig c = small(Arch::gpt2);
  Gpt tied = make(c);
  c.tie = false;
  Gpt apart = make(c);
  StateDict weights = tied.state_dict();
  weights.emplace("head.weight", weights.at("embed.weight"));
  apart.load_state_dict(weights);
  const Tensor ids = tokens(2, 7), targets = tokens(2, 7, 2);
  const Step a = run(tied, ids, targets), b = run(apart, ids, targets);
  CHECK(test::different_bits(a.loss, b.loss) == "");
  const Tensor both = add(b.gradients[0].tensor, b.gradients.back().tensor);
  CHECK(b.gradients.back().name == "head.weight");
  CHECK(test::mismatch(a.gradients[0].tensor, both, 1e-14) == "");
}

TEST_CASE("gpt: norms over all heads, gates, partial rotation and windows of some layers") {
  for (const GptConfig& c : variants(small(Arch::llama))) {
    const Gpt model = make(c);
    CHECK(model.parameter_count() == c.parameter_count());
    const Tensor ids = tokens(2, 12), targets = tokens(2, 12, 2);
    nn::KvCache cache(c, 2, 12, DType::f64);
    const Tensor all = test::check_decoding(model, ids, cache);
    // Each setting changes the result.
    GptConfig less = c;
    less.clip_qkv = 0;
    less.rotary_dim = 0;
    if (!c.attn_gate) CHECK(test::mismatch(make(less)(ids), all, 1e-6) != "");
    less = c;
    less.rotary_dim = 0;
    less.zero_centered_norm = false;
    less.pattern.clear();
    CHECK((test::mismatch(make(less)(ids), all, 1e-6) != "") == !c.qk_norm_joint);
    GptConfig again = c;
    again.recompute = nn::Recompute::attention;
    Gpt plain = make(c), recomputes = make(again);
    CHECK(differences(run(recomputes, ids, targets), run(plain, ids, targets)) == "");
  }
  const GptConfig windows = variants(small(Arch::llama))[2];
  CHECK(windows.window_of(0) == 0);
  CHECK(windows.window_of(1) == 3);
}

TEST_CASE("gpt: recomputing gives the same bits with dropout") {
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      CAPTURE(name(dtype));
      GptConfig c = small(arch);
      c.dropout = 0.2;
      Gpt plain = make(c, dtype);
      const Tensor ids = tokens(2, 9), targets = tokens(2, 9, 2);
      const RandomScope scope({.seed = 5, .step = 3});
      const Step want = run(plain, ids, targets);
      for (const nn::Recompute r : {nn::Recompute::selective, nn::Recompute::full}) {
        c.recompute = r;
        Gpt again = make(c, dtype);
        CHECK(differences(run(again, ids, targets), want) == "");
      }
    }
}

TEST_CASE("gpt: dropout is active only in training and draws nothing at rate 0") {
  GptConfig c = small(Arch::gpt2);
  c.dropout = 0.3;
  Gpt model = make(c);
  const Tensor ids = tokens(2, 9);
  {
    const RandomScope scope({.seed = 5, .step = 3});
    CHECK(test::mismatch(model(ids), model(ids), 0) == "");
  }
  CHECK(test::mismatch(model(ids), model(ids), 1e-6) != "");
  model.eval();
  c.dropout = 0;
  const Gpt without = make(c);
  CHECK(test::mismatch(model(ids), without(ids), 0) == "");
}

TEST_CASE("gpt: gradients agree with finite differences") {
  const auto tiny = [](Arch arch) {
    return GptConfig{.arch = arch,
                     .layers = 2,
                     .heads = 2,
                     .kv_heads = 1,
                     .dim = 4,
                     .ffn = 6,
                     .seq = 4,
                     .vocab = 5};
  };
  GptConfig llama = tiny(Arch::llama);
  llama.head_size = 4;
  llama.attn_bias = nn::AttentionBias::qkv;
  llama.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 2, .original = 3};
  std::vector<GptConfig> configs = variants(llama);
  configs.push_back(llama);
  configs.push_back(tiny(Arch::gpt2));
  for (const GptConfig& c : configs) {
    Gpt model = make(c);
    const Tensor ids = Tensor::of({1, 4, 0, 3}, {1, 4}, DType::i32);
    const Tensor targets = Tensor::of({4, 0, -100, 2}, {1, 4}, DType::i32);
    Tape tape;
    model.loss(model(ids), targets).backward();
    for (const NamedTensor& p : model.named_parameters()) {
      CAPTURE(p.name);
      const Tensor g = p.tensor.grad();
      for (std::int64_t i = 0; i < p.tensor.numel(); i += 5) {
        double& w = p.tensor.data<double>()[i];
        const double kept = w, h = 1e-5;
        w = kept + h;
        const double up = model.loss(model(ids), targets).item();
        w = kept - h;
        const double down = model.loss(model(ids), targets).item();
        w = kept;
        CHECK(g.data<double>()[i] ==
              doctest::Approx((up - down) / (2 * h)).epsilon(1e-6).scale(0.1));
      }
    }
  }
}

TEST_CASE("loss: the sum divided by the count is the mean") {
  const Gpt model = make(small(Arch::gpt2));
  const Tensor logits = model(tokens(2, 5));
  const Tensor targets = tokens(2, 5, 2);
  targets.slice(1, 0, 2).fill_(-100);
  const auto [sum, count] = model.loss.sum(logits, targets);
  CHECK(count.item_int() == 6);
  CHECK(sum.item() / 6 == doctest::Approx(model.loss(logits, targets).item()).epsilon(1e-14));
}

TEST_CASE("loss: the fused head gives the loss of its logits") {
  const Tensor ids = tokens(2, 5), targets = tokens(2, 5, 2);
  targets.slice(1, 0, 2).fill_(-100);
  for (const bool biased : {false, true}) {
    nn::Linear head(8, 19, {.bias = biased, .dtype = DType::f64});
    nn::init(head, 5);
    nn::CrossEntropyLoss loss;
    loss.label_smoothing = 0.1;
    const Tensor hidden = test::random({2, 5, 8}, 3);
    if (biased) head.bias.copy_(test::random({19}, 4));
    const auto gradients = [&](bool fused) {
      Tensor h = hidden.detach();
      h.set_requires_grad();
      Tape tape;
      const Tensor value = fused ? loss(h, head, targets) : loss(head(h), targets);
      TensorList out = tape.gradients(value, {h, head.weight});
      out.push_back(value.detach());
      return out;
    };
    const TensorList got = gradients(true), want = gradients(false);
    for (int i = 0; i < got.size(); ++i) CHECK(test::mismatch(got[i], want[i], 1e-14) == "");
    const auto [sum, count] = loss.sum(hidden, head, targets);
    CHECK(count.item_int() == 6);
    CHECK(sum.item() == doctest::Approx(6 * loss(hidden, head, targets).item()).epsilon(1e-14));
  }
}

TEST_CASE("gpt: a step on the meta device has shapes and no values") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    const nn::DeviceScope meta(kMeta);
    Gpt model(small(arch));
    Tape tape;
    const Tensor ids = Tensor::empty({2, 12}, DType::i32, kMeta);
    const Tensor logits = model(ids);
    CHECK(logits.shape() == Shape{2, 12, 19});
    model.loss(logits, ids).backward();
    for (const NamedTensor& p : model.named_parameters()) {
      REQUIRE(p.tensor.grad().defined());
      CHECK(p.tensor.grad().is_meta());
      CHECK(p.tensor.grad().shape() == p.tensor.shape());
    }
  }
}

}  // namespace weft::gpt_test
