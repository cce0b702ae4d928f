// A packed row gives the same logits, loss and gradients as its separate sequences.
#include <doctest/doctest.h>

#include <vector>

#include "weft/autograd/view.h"
#include "weft/data/packing.h"
#include "weft/nn/attention.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::gpt_packing_test {
using nn::Arch;
using nn::Gpt;
using nn::GptConfig;

namespace {

constexpr std::int64_t kSeq = 8, kVocab = 19;

GptConfig small(Arch arch) {
  return {.arch = arch,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .dim = 32,
          .seq = kSeq,
          .vocab = kVocab};
}

// Weights large enough that a wrong position or attention to a neighbour changes the logits.
Gpt make(const GptConfig& config) {
  Gpt model(config);
  model.to(DType::f64);
  std::uint64_t seed = 70;
  for (const NamedTensor& p : model.named_parameters()) {
    const bool norm = p.name.find("norm") != std::string::npos && p.name.ends_with("weight");
    normal_(p.tensor, {seed++, 1, 0}, norm ? 1 : 0, p.tensor.ndim() == 2 ? 0.25 : 0.1);
  }
  return model;
}

// Documents of 5, 8, 3 and 1 tokens: two rows of 8 and one short row when packed.
std::vector<std::vector<std::int32_t>> documents() {
  std::vector<std::vector<std::int32_t>> out;
  std::int32_t next = 3;
  for (const int length : {5, 8, 3, 1}) {
    auto& d = out.emplace_back();
    for (int i = 0; i < length; ++i) d.push_back(next = (7 * next + 5) % kVocab);
  }
  return out;
}

Tensor row(const std::vector<std::int32_t>& tokens) {
  return Tensor::from<std::int32_t>(tokens, {1, static_cast<std::int64_t>(tokens.size())});
}

Tensor flat(const Tensor& rows) { return rows.reshape({1, rows.numel()}); }

// The logits of all documents in order, (tokens, vocab), one forward pass per document.
Tensor one_by_one(const Gpt& model) {
  TensorList parts;
  for (const auto& d : documents()) parts.push_back(model(row(d)).select(0, 0));
  return cat(parts, 0);
}

// The same from packed rows. First fit puts documents 0 and 2 into row 0, 1 into row 1, 3 into row
// 2.
Tensor packed(const Gpt& model, const data::PackedRows& p) {
  const nn::Packing packing = p.packing(0, p.rows());
  const Tensor y = model(flat(p.tokens), packing).select(0, 0);
  return cat({y.slice(0, 0, 5), y.slice(0, kSeq, 2 * kSeq), y.slice(0, 5, kSeq),
              y.slice(0, 2 * kSeq, 2 * kSeq + 1)},
             0);
}

const GptConfig kConfigs[] = {small(Arch::gpt2), small(Arch::llama),
                              [] {
                                GptConfig c = small(Arch::llama);
                                c.qk_norm = true;
                                c.window = 3;
                                return c;
                              }(),
                              [] {
                                GptConfig c = small(Arch::llama);
                                c.positions = nn::Positions::none;
                                c.norm = nn::NormKind::layer;
                                c.activation = Activation::geglu;
                                return c;
                              }(),
                              [] {
                                GptConfig c = small(Arch::llama);
                                c.qk_norm = c.qk_norm_joint = true;
                                c.clip_qkv = 1;
                                c.attn_gate = c.zero_centered_norm = true;
                                c.rotary_dim = 2;
                                return c;
                              }()};

}  // namespace

TEST_CASE("gpt: packed sequences see only themselves and keep their own positions") {
  const data::PackedRows rows = data::pack_documents(documents(), kSeq);
  REQUIRE(rows.rows() == 3);
  for (const GptConfig& config : kConfigs) {
    const Gpt model = make(config);
    const Tensor want = one_by_one(model);
    CHECK(test::mismatch(packed(model, rows), want, 1e-12) == "");
    // Sensitivity check: in one unpacked row the second document gives different logits.
    const Tensor plain = model(rows.tokens.narrow(0, 0, 1)).select(0, 0);
    CHECK(test::mismatch(plain.slice(0, 5, kSeq), want.slice(0, 13, 16), 1e-3) != "");
  }
}

TEST_CASE("gpt: gradients of a packed row equal the gradients of its sequences") {
  const data::PackedRows rows = data::pack_documents(documents(), kSeq);
  const Tensor dy = test::random({17, kVocab}, 5);
  for (GptConfig config : kConfigs)
    for (const nn::Recompute how : {nn::Recompute::none, nn::Recompute::full}) {
      config.recompute = how;
      Gpt model = make(config);
      const auto gradients = [&](auto forward) {
        Tape tape;
        forward().backward(dy);
        NamedTensors out;
        for (const NamedTensor& p : model.named_parameters())
          out.push_back({p.name, p.tensor.grad()});
        model.zero_grad();
        return out;
      };
      const NamedTensors want = gradients([&] { return one_by_one(model); });
      const NamedTensors got = gradients([&] { return packed(model, rows); });
      for (std::size_t i = 0; i < want.size(); ++i) {
        CAPTURE(want[i].name);
        CHECK(test::mismatch(got[i].tensor, want[i].tensor, 1e-11) == "");
      }
    }
}

TEST_CASE("packing: boundaries become positions once on the device") {
  const std::vector<std::int32_t> boundaries = {0, 2, 2, 5};
  for (const Device device : {kCpu, kMeta}) {
    const nn::Packing p = nn::Packing::of(boundaries, 3, device);
    CHECK(p.checked());
    nn::Packing replaced = p;
    CHECK(replaced.checked());
    replaced.cu_seqlens = p.cu_seqlens.clone();
    CHECK(!replaced.checked());
    CHECK(p.cu_seqlens.device() == device);
    CHECK(p.positions.device() == device);
    CHECK(p.positions.shape() == Shape{1, 5});
    if (device == kMeta) continue;
    CHECK(test::different_bits(p.cu_seqlens, Tensor::of({0, 2, 2, 5}, {4}, DType::i32)) == "");
    CHECK(test::different_bits(p.positions, Tensor::of({0, 1, 0, 1, 2}, {1, 5}, DType::i32)) == "");
  }
  const nn::Packing written = nn::Packing::of(boundaries, 3);
  written.cu_seqlens.fill_(0);
  CHECK(!written.checked());
  const std::vector<std::int32_t> no_tokens = {0};
  CHECK(nn::Packing::of(no_tokens, 3).positions.shape() == Shape{1, 0});
  // Packed documents give the same as explicit positions and boundaries.
  const data::PackedRows rows = data::pack_documents(documents(), kSeq);
  const nn::Packing two = rows.packing(1, 2);
  CHECK(test::different_bits(two.cu_seqlens, rows.flat_cu_seqlens(1, 2)) == "");
  CHECK(test::different_bits(two.positions, flat(rows.positions.narrow(0, 1, 2))) == "");

  const auto error = [](const std::vector<std::int32_t>& b) {
    return test::error_of([&] { nn::Packing::of(b, 3); });
  };
  CHECK(error({}) == "packing: boundaries must start at 0, got none");
  CHECK(error({1, 2}) == "packing: boundaries must start at 0, got 1");
  CHECK(error({0, 3, 2}) == "packing: boundaries must not decrease, got 2 after 3");
  CHECK(error({0, 2, 6}) == "packing: sequences must have at most 3 tokens, got 4");
}

TEST_CASE("packing: errors name the rule") {
  const Gpt model = make(small(Arch::llama));
  const Tensor ids = Tensor::of({1, 2, 3, 4}, {1, 4}, DType::i32);
  const Tensor cu = Tensor::of({0, 1, 4}, {3}, DType::i32);
  const Tensor positions = Tensor::of({0, 0, 1, 2}, {4}, DType::i32);
  const auto error = [&](const Tensor& x, const nn::Packing& p) {
    return test::error_of([&] { model(x, p); });
  };
  CHECK(error(ids, {cu, positions}) == "no error");
  CHECK(error(ids, {cu, {}}) == "packing: cu_seqlens and positions must both be given");
  CHECK(error(ids, {{}, positions}) == "packing: cu_seqlens and positions must both be given");
  CHECK(error(ids.view({2, 2}), {cu, positions}) ==
        "packing: the sequences must lie in one row, (1, tokens), got [2, 2]");
  CHECK(error(ids, {cu, Tensor::of({0, 0, 1}, {3}, DType::i32)}) ==
        "packing: the row must have 3 tokens, got 4");
  // In every model alike: tables of positions, of angles, or no table at all.
  GptConfig delta = small(Arch::llama);
  delta.pattern = "d";
  for (const GptConfig& c : {small(Arch::gpt2), small(Arch::llama), delta})
    for (const int wrong : {8, -1}) {
      const Gpt small_model(c);
      const Tensor at = Tensor::of({0, 0, 1, static_cast<double>(wrong)}, {4}, DType::i32);
      CHECK(test::error_of([&] {
              small_model(ids, {cu, at});
            }) == message("gpt: positions in a packed row must be in [0, seq 8), got {}", wrong));
    }
  nn::KvCache cache(model.config, 1, 4, DType::f64);
  CHECK(test::error_of([&] {
          (*model.blocks[0].as<nn::Attention>())(test::random({1, 4, 32}),
                                                 {.packing = {cu, positions}, .cache = &cache});
        }) == "attn: a packed row cannot go with a cache");
}

}  // namespace weft::gpt_packing_test
