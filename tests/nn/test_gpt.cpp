// Models by their logits: parameters, masks, decoding with a cache, and what is refused. Training
// is in test_gpt_training.cpp.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "weft/nn/attention.h"
#include "weft/tests/gpt_models.h"
#include "weft/tests/gpt_support.h"
#include "weft/tests/support.h"

namespace weft::gpt_test {

TEST_CASE("gpt: the number of parameters follows the formula and the published sizes") {
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    for (const bool tie : {true, false})
      for (const bool qk_norm : {true, false}) {
        GptConfig c = small(arch);
        c.tie = tie;
        c.qk_norm = qk_norm;
        const nn::DeviceScope meta(kMeta);
        CHECK(Gpt(c).parameter_count() == c.parameter_count());
      }
  const nn::DeviceScope meta(kMeta);
  const GptConfig gpt2{.layers = 12, .heads = 12, .dim = 768, .seq = 1024, .vocab = 50257};
  CHECK(Gpt(gpt2).parameter_count() == 124439808);
  const GptConfig llama{.arch = Arch::llama,
                        .layers = 22,
                        .heads = 32,
                        .kv_heads = 4,
                        .dim = 2048,
                        .ffn = 5632,
                        .seq = 2048,
                        .vocab = 32000};
  CHECK(Gpt(llama).parameter_count() == 1100048384);  // TinyLlama 1.1B
  CHECK(GptConfig{.arch = Arch::llama, .dim = 128}.ffn_dim() == 352);
  CHECK(GptConfig{.dim = 128}.ffn_dim() == 512);
}

TEST_CASE("gpt: FLOPs count every product and the unmasked half of attention") {
  const GptConfig c{.layers = 2, .heads = 4, .dim = 32, .seq = 12, .vocab = 19};
  const double products = 2 * (4 * 32 * 32 + 2 * 32 * 128) + 19 * 32;
  CHECK(c.flops_per_token() == doctest::Approx(6 * (products + 2 * 2 * 32 * 6.5)));
  GptConfig w = c;
  w.window = 1;
  CHECK(w.flops_per_token() == doctest::Approx(6 * (products + 2 * 2 * 32 * 1)));
}

TEST_CASE("gpt: parameters have the expected names and initial values") {
  Gpt model(small(Arch::gpt2));
  nn::init(model, 1);
  const StateDict s = model.state_dict();
  CHECK(s.count("blocks.1.attn.qkv.weight") == 1);
  CHECK(s.count("blocks.0.mlp.down.bias") == 1);
  CHECK(s.count("positions.weight") == 1);
  CHECK(s.count("head.weight") == 0);  // tied
  CHECK(model.head.weight.same(model.embed.weight));
  const auto deviation = [](const Tensor& t) { return std::sqrt(t.square().mean().item()); };
  CHECK(deviation(s.at("blocks.1.attn.qkv.weight")) == doctest::Approx(0.02).epsilon(0.1));
  CHECK(deviation(s.at("blocks.1.mlp.down.weight")) == doctest::Approx(0.01).epsilon(0.1));
  CHECK(deviation(s.at("blocks.1.attn.proj.weight")) == doctest::Approx(0.01).epsilon(0.1));
  CHECK(deviation(s.at("embed.weight")) == doctest::Approx(0.02).epsilon(0.1));
  CHECK(deviation(s.at("norm.weight")) == 1);
  CHECK(deviation(s.at("blocks.1.attn.qkv.bias")) == 0);
  const Gpt llama(small(Arch::llama));
  for (const auto& [name, tensor] : llama.state_dict()) {
    CHECK(name.find("bias") == std::string::npos);
    CHECK(name.find("rotary") == std::string::npos);
  }
  CHECK(llama.state_dict().count("head.weight") == 1);
}

TEST_CASE("gpt: an untrained model predicts a nearly uniform distribution") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    Gpt model(small(arch));
    nn::init(model, 2);
    const double loss = model.loss(model(tokens(3, 12)), tokens(3, 12, 2)).item();
    CHECK(loss == doctest::Approx(std::log(19)).epsilon(0.02));
  }
}

TEST_CASE("gpt: a token does not see later tokens") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    const Gpt model = make(small(arch));
    const Tensor ids = tokens(1, 12), changed = ids.clone();
    changed.slice(1, 8, 9).fill_((ids.data<std::int32_t>()[8] + 1) % 19);
    const Tensor a = model(ids), b = model(changed);
    CHECK(test::mismatch(a.narrow(1, 0, 8), b.narrow(1, 0, 8), 1e-14) == "");
    for (int t = 8; t < 12; ++t)
      CHECK(test::mismatch(a.narrow(1, t, 1), b.narrow(1, t, 1), 1e-6) != "");
  }
}

TEST_CASE("gpt: a window limits how far a token's influence reaches") {
  GptConfig c = small(Arch::llama);
  c.window = 3;
  const Gpt model = make(c);
  const Tensor ids = tokens(1, 12), changed = ids.clone();
  changed.slice(1, 2, 3).fill_((ids.data<std::int32_t>()[2] + 1) % 19);
  const Tensor a = model(ids), b = model(changed);
  // Two layers of window 3 reach 2 * 2 tokens: 2 .. 6 change, 7 and later do not.
  CHECK(test::mismatch(a.narrow(1, 6, 1), b.narrow(1, 6, 1), 1e-9) != "");
  CHECK(test::mismatch(a.narrow(1, 7, 5), b.narrow(1, 7, 5), 1e-14) == "");
}

TEST_CASE("gpt: qk_norm makes attention invariant to the scale of q and k") {
  GptConfig c = small(Arch::llama);
  c.norm_eps = 0;
  for (const bool on : {true, false}) {
    c.qk_norm = on;
    Gpt model = make(c);
    CHECK(model.state_dict().count("blocks.0.attn.q_norm.weight") == (on ? 1 : 0));
    const Tensor ids = tokens(2, 6);
    const Tensor before = model(ids);
    // The first 6 of 8 heads of the packed projection are queries and keys.
    for (nn::Block& b : model.blocks) b.as<nn::Attention>()->qkv.weight.narrow(0, 0, 6 * 8).mul_(3);
    CHECK((test::mismatch(model(ids), before, 1e-12) == "") == on);
  }
}

TEST_CASE("gpt: decoding with a cache equals the full forward") {
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    for (const std::int64_t window : {0, 4}) {
      CAPTURE(window);
      GptConfig c = small(arch);
      c.window = window;
      c.qk_norm = arch == Arch::llama;
      const Gpt model = make(c);
      const Tensor ids = tokens(3, 12);
      nn::KvCache cache(c, 3, 12, DType::f64);
      const Tensor all = test::check_decoding(model, ids, cache);
      CHECK(all.shape() == Shape{3, 12, 19});
      cache.truncate(5);  // rewinds
      CHECK(test::mismatch(model.decode(ids.narrow(1, 5, 1), cache), all.select(1, 5), 1e-12) ==
            "");
    }
}

TEST_CASE("gpt: a clone computes the same from its own memory") {
  Gpt model = make(small(Arch::llama));
  Gpt copy = nn::clone(model);
  const Tensor ids = tokens(1, 4);
  const Tensor before = model(ids);
  CHECK(test::mismatch(copy(ids), before, 0) == "");
  copy.norm.weight.fill_(0);
  CHECK(test::mismatch(model(ids), before, 0) == "");
}

TEST_CASE("gpt: errors name the rule") {
  const auto error = [](auto change) {
    GptConfig c{.layers = 2, .heads = 4, .dim = 32, .seq = 8, .vocab = 19};
    change(c);
    return test::error_of([&] { c.validate(); });
  };
  CHECK(error([](GptConfig&) {}) == "no error");
  constexpr std::int64_t kHuge = INT64_MAX;
  CHECK(error([](GptConfig& c) { c.layers = kHuge; }) ==
        "gpt: layers must be at most 10000, got 9223372036854775807");
  CHECK(error([](GptConfig& c) { c.mtp.depths = 1001; }) ==
        "gpt: mtp must be at most 1000, got 1001");
  for (auto member : {&GptConfig::heads, &GptConfig::kv_heads, &GptConfig::dim, &GptConfig::ffn,
                      &GptConfig::seq, &GptConfig::vocab})
    CHECK(error([&](GptConfig& c) {
            c.*member = kHuge;
          }).ends_with(" must be at most 1073741824, got 9223372036854775807"));
  CHECK(error([](GptConfig& c) { c.mla.kv_lora = kHuge; }) ==
        "gpt: kv_lora must be at most 1073741824, got 9223372036854775807");
  CHECK(error([](GptConfig& c) { c.delta.key_dim = kHuge; }) ==
        "gpt: delta_key_dim must be at most 1073741824, got 9223372036854775807");
  CHECK(error([](GptConfig& c) {
          c.dim = c.ffn = 1 << 28;
        }).starts_with("gpt: the model must have at most 9007199254740992 parameters, got "));
  CHECK(error([](GptConfig& c) { c.layers = 0; }) == "gpt: layers must be at least 1, got 0");
  CHECK(error([](GptConfig& c) { c.heads = 0; }) == "gpt: heads must be at least 1, got 0");
  CHECK(error([](GptConfig& c) { c.dim = -1; }) == "gpt: dim must be at least 1, got -1");
  CHECK(error([](GptConfig& c) { c.dim = 130; }) == "gpt: dim 130 must be a multiple of heads 4");
  CHECK(error([](GptConfig& c) { c.kv_heads = -1; }) == "gpt: kv_heads must be at least 0, got -1");
  CHECK(error([](GptConfig& c) { c.kv_heads = 3; }) ==
        "gpt: heads 4 must be a multiple of kv_heads 3");
  CHECK(error([](GptConfig& c) {
          c.arch = Arch::llama;
          c.dim = 12;
        }) == "gpt: dim / heads must be even for rotary positions, got 12 / 4 = 3");
  CHECK(error([](GptConfig& c) { c.ffn = -1; }) == "gpt: ffn must be at least 0, got -1");
  CHECK(error([](GptConfig& c) { c.seq = 0; }) == "gpt: seq must be at least 1, got 0");
  CHECK(error([](GptConfig& c) { c.vocab = 0; }) == "gpt: vocab must be at least 1, got 0");
  CHECK(error([](GptConfig& c) { c.dropout = 1; }) == "gpt: dropout must be in [0, 1), got 1");
  CHECK(error([](GptConfig& c) { c.rope_theta = 0; }) == "gpt: rope_theta must be above 0, got 0");
  CHECK(error([](GptConfig& c) { c.norm_eps = -1; }) == "gpt: norm_eps must be at least 0, got -1");
  CHECK(error([](GptConfig& c) { c.window = -1; }) == "gpt: window must be at least 0, got -1");
  CHECK(error([](GptConfig& c) { c.zero_centered_norm = true; }) ==
        "gpt: zero_centered_norm needs norm rms, got layer");
  CHECK(error([](GptConfig& c) {
          c.arch = Arch::llama;
          c.rotary_dim = 10;
        }) == "gpt: rotary_dim must be even and at most head_dim 8, got 10");
  CHECK(error([](GptConfig& c) { c.pattern = "aw"; }) ==
        "gpt: a pattern with w, \"aw\", needs a window, got 0");
  CHECK(error([](GptConfig& c) { c.qk_norm_joint = true; }) == "gpt: qk_norm_joint needs qk_norm");
  CHECK(error([](GptConfig& c) {
          c.arch = Arch::llama;
          c.rope_theta = 1;
          c.rope_scaling = {.kind = RopeScaling::Kind::yarn, .factor = 2, .original = 8};
        }) == "gpt: rope_scaling yarn needs rope_theta above 1, got 1");
  const Gpt model(small(Arch::gpt2));
  CHECK(test::error_of([&] { model(Tensor::zeros({13}, DType::i32)); }) ==
        "gpt: ids must have shape (batch, tokens), got [13]");
  CHECK(test::error_of([&] { model(tokens(1, 13)); }) == "gpt: at most seq 12 tokens, got 13");
}

TEST_CASE("attention module: errors name the rule") {
  CHECK(test::error_of([] { nn::Attention a(10, 4); }) ==
        "attention: dim 10 must be a multiple of heads 4");
  CHECK(test::error_of([] { nn::Attention a(12, 4, {.kv_heads = 3}); }) ==
        "attention: heads 4 must be a multiple of kv_heads 3");
  CHECK(test::error_of([] { nn::Attention a(12, 4, {.window = -1}); }) ==
        "attention: window must be at least 0, got -1");
  const nn::Attention a(12, 4);
  CHECK(test::error_of([&] {
          a(Tensor::zeros({3, 12}));
        }) == "attn: x must have shape (batch, tokens, dim), got [3, 12]");
  CHECK(test::error_of([] { nn::RotaryTable r(4, 3, 10000); }) ==
        "rotary: head_dim must be even, got 3");
  CHECK(test::error_of([] { nn::RotaryTable r(0, 4, 10000); }) ==
        "rotary: seq must be at least 1, got 0");
  CHECK(test::error_of([] { nn::RotaryTable r(4, 4, 0); }) ==
        "rotary: theta must be above 0, got 0");
}

}  // namespace weft::gpt_test
