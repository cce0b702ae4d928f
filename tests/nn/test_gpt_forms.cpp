// Positions, norms, activations and biases in every combination.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/tests/activation_support.h"
#include "weft/tests/gpt_models.h"
#include "weft/tests/gpt_support.h"
#include "weft/tests/support.h"

namespace weft::gpt_test {
namespace {

using nn::NormKind;
using nn::Positions;

std::string text(const GptConfig& c) {
  return message("{}, positions {}, norm {}, activation {}, mlp_bias {}, experts {}",
                 word_of(nn::kArchWords, c.arch), word_of(nn::kPositionsWords, c.positions),
                 word_of(nn::kNormWords, c.norm), word_of(nn::kActivationWords.all, c.activation),
                 c.mlp_biases(), c.moe.experts);
}

// Each kind of positions and norm with each activation; biases and experts alternate.
std::vector<GptConfig> grid() {
  std::vector<GptConfig> all;
  for (const Positions positions : {Positions::learned, Positions::rope, Positions::none})
    for (const NormKind norm : {NormKind::layer, NormKind::rms})
      for (const Activation a : test::kEveryActivation)
        for (const bool experts : {false, true}) {
          GptConfig c = small(all.size() / 2 % 2 ? Arch::gpt2 : Arch::llama);
          c.positions = positions;
          c.norm = norm;
          c.activation = a;
          c.mlp_bias = all.size() % 3 == 0;
          if (experts) {
            c.moe = {.experts = 3, .ffn = 16, .shared_ffn = 8};
            c.dense_layers = 1;
          }
          all.push_back(c);
        }
  return all;
}

}  // namespace

TEST_CASE("gpt: the form of gpt2 and llama is that of their settings, said one by one") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    const bool gpt2 = arch == Arch::gpt2;
    GptConfig said = small(gpt2 ? Arch::llama : Arch::gpt2);
    said.positions = gpt2 ? Positions::learned : Positions::rope;
    said.norm = gpt2 ? NormKind::layer : NormKind::rms;
    said.activation = gpt2 ? Activation::gelu_tanh : Activation::swiglu;
    said.mlp_bias = said.tie = gpt2;
    said.attn_bias = gpt2 ? nn::AttentionBias::all : nn::AttentionBias::none;
    const Gpt by_arch = make(small(arch)), by_settings = make(said);
    const NamedTensors a = by_arch.named_parameters(), b = by_settings.named_parameters();
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i].name == b[i].name);
    const Tensor ids = tokens(2, 12);
    CHECK(test::different_bits(by_arch(ids), by_settings(ids)) == "");
  }
  GptConfig erf = small(Arch::gpt2);
  erf.gelu = Gelu::erf;
  CHECK(erf.mlp_activation() == Activation::gelu_erf);
  CHECK(erf.resolved().activation == Activation::gelu_erf);
  CHECK(erf.resolved().mlp_activation() == Activation::gelu_erf);
  GptConfig llama = small(Arch::llama);
  llama.gelu = Gelu::erf;  // not used
  CHECK(llama.mlp_activation() == Activation::swiglu);
  for (const GptConfig& c : {erf, llama}) CHECK_NOTHROW(c.resolved().validate());
}

TEST_CASE("gpt: every form has the parameters of its formula and decodes as its full forward") {
  for (const GptConfig& c : grid()) {
    CAPTURE(text(c));
    const Gpt model = make(c);
    CHECK(model.parameter_count() == c.parameter_count());
    const StateDict state = model.state_dict();
    CHECK(state.count("positions.weight") == (c.positions == Positions::learned ? 1 : 0));
    CHECK(model.rotary.has_value() == (c.positions == Positions::rope));
    CHECK(state.count("norm.bias") == (c.norm == NormKind::layer ? 1 : 0));
    CHECK(state.count("blocks.0.mlp.down.bias") == (c.mlp_biases() ? 1 : 0));
    CHECK(state.count("blocks.0.mlp.gate_up.weight") == (is_gated(*c.activation) ? 1 : 0));
    if (c.moe.experts > 0) {
      CHECK(state.count("blocks.1.moe.experts.down_bias") == (c.mlp_biases() ? 1 : 0));
      CHECK(state.count("blocks.1.moe.experts.up") == (is_gated(*c.activation) ? 0 : 1));
    }
    const Tensor ids = tokens(3, 12);
    nn::KvCache cache(c, 3, 12, DType::f64);
    test::check_decoding(model, ids, cache);
    if (c.moe.experts == 0) test::check_packing(model, ids.narrow(0, 0, 1));
  }
}

TEST_CASE("gpt: multiply-adds follow from the widths of a form") {
  GptConfig c = small(Arch::llama);
  c.ffn = 48;
  const double rotary = c.flops_per_token();
  c.positions = Positions::none;
  c.norm = NormKind::layer;
  CHECK(c.flops_per_token() == rotary);  // neither has matrices
  c.activation = Activation::relu2;      // no gate: one of three matrices less
  CHECK(c.flops_per_token() == rotary - 6.0 * 2 * 48 * 32);
  CHECK(c.ffn_dim() == 48);
  c.ffn = 0;
  CHECK(c.ffn_dim() == 4 * 32);
  c.activation = Activation::geglu;
  CHECK(c.ffn_dim() == 96);
}

TEST_CASE("gpt: without positions the order of earlier tokens does not matter to one layer") {
  for (const Positions positions : {Positions::none, Positions::rope, Positions::learned}) {
    GptConfig c = small(Arch::llama);
    c.layers = 1;
    c.positions = positions;
    const Gpt model = make(c);
    const Tensor a = Tensor::of({3, 7, 11, 5}, {1, 4}, DType::i32),
                 b = Tensor::of({7, 3, 11, 5}, {1, 4}, DType::i32);
    const bool same = test::mismatch(model(a).select(1, 3), model(b).select(1, 3), 1e-12).empty();
    CHECK(same == (positions == Positions::none));
  }
}

TEST_CASE("gpt: every form recomputes to the same bits and trains every parameter") {
  for (GptConfig c : grid()) {
    CAPTURE(text(c));
    const Tensor ids = tokens(2, 9), targets = tokens(2, 9, 2);
    const auto gradients = [&](nn::Recompute recompute) {
      c.recompute = recompute;
      Gpt model = make(c, DType::f32);
      Tape tape;
      model.losses(ids, targets).total().backward();
      NamedTensors out;
      for (const NamedTensor& p : model.named_parameters())
        out.push_back({p.name, p.tensor.grad()});
      return out;
    };
    const NamedTensors want = gradients(nn::Recompute::none);
    for (const nn::Recompute r : {nn::Recompute::selective, nn::Recompute::full}) {
      const NamedTensors got = gradients(r);
      for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(want[i].name);
        REQUIRE(want[i].tensor.defined());
        CHECK(test::different_bits(got[i].tensor, want[i].tensor) == "");
      }
    }
  }
}

TEST_CASE("gpt: errors name the setting that another needs") {
  const auto error = [](Arch arch, auto change) {
    GptConfig c = small(arch);
    change(c);
    return test::error_of([&] { c.validate(); });
  };
  const auto none = [](auto change) {
    return [change](GptConfig& c) {
      c.positions = Positions::none;
      change(c);
    };
  };
  CHECK(error(Arch::llama, none([](GptConfig& c) { c.dim = 12; })) == "no error");  // heads of 3
  CHECK(error(Arch::llama, none([](GptConfig& c) {
                c.rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 2};
              })) == "gpt: rope_scaling needs rotary positions, got none");
  CHECK(error(Arch::gpt2, [](GptConfig& c) { c.rotary_dim = 2; }) ==
        "gpt: rotary_dim needs rotary positions, got learned");
  CHECK(error(Arch::llama, none([](GptConfig& c) {
                c.kv_heads = 0;
                c.attention = nn::AttentionKind::mla;
              })) == "gpt: attention mla needs rotary positions, got none");
  CHECK(error(Arch::llama, [](GptConfig& c) {
          c.zero_centered_norm = true;
          c.norm = NormKind::layer;
        }) == "gpt: zero_centered_norm needs norm rms, got layer");
  CHECK(error(Arch::gpt2, [](GptConfig& c) {
          c.zero_centered_norm = true;
          c.norm = NormKind::rms;
        }) == "no error");
  CHECK(error(Arch::gpt2, [](GptConfig& c) {
          c.gelu = Gelu::erf;
          c.activation = Activation::relu;
        }) == "gpt: gelu erf needs activation auto or gelu_erf, got relu");
}

TEST_CASE("gpt forms: a resolved configuration is open again where it equals its preset") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    const GptConfig back = small(arch).resolved().reduced();
    CHECK(back.positions == Positions::automatic);
    CHECK(back.norm == NormKind::automatic);
    CHECK(!back.activation);
    CHECK(!back.mlp_bias);
    CHECK(!back.tie);
    CHECK(back.attn_bias == nn::AttentionBias::automatic);
  }
  GptConfig erf = small(Arch::gpt2);
  erf.gelu = Gelu::erf;
  CHECK(!erf.resolved().reduced().activation);
  CHECK(erf.resolved().reduced().mlp_activation() == Activation::gelu_erf);
  for (const GptConfig& c : grid()) {
    const GptConfig back = c.resolved().reduced();
    CHECK(back.position_kind() == c.position_kind());
    CHECK(back.norm_kind() == c.norm_kind());
    CHECK(back.mlp_activation() == c.mlp_activation());
    CHECK(back.mlp_biases() == c.mlp_biases());
  }
}

TEST_CASE("gpt forms: the text of a model names what differs from its preset") {
  GptConfig c = small(Arch::llama);
  CHECK(Gpt(c).describe().starts_with("Gpt(llama, "));
  CHECK(Gpt(c.resolved()).describe() == Gpt(c).describe());
  c.positions = Positions::none;
  c.norm = NormKind::layer;
  c.activation = Activation::geglu;
  CHECK(Gpt(c).describe().starts_with("Gpt(llama, positions none, norm layer, geglu, "));
}

}  // namespace weft::gpt_test
