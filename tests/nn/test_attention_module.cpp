#include <doctest/doctest.h>

#include "weft/tests/support.h"
#include "weft/weft.h"

namespace weft::attention_module_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;

nn::Attention encoder_layer(nn::AttentionOptions options = {}) {
  options.causal = false;
  nn::Attention layer(16, 4, options);
  nn::init(layer, 3);
  layer.to(DType::f64);
  return layer;
}

Tensor some(const Shape& shape) { return rand_uniform(shape, -1, 1, DType::f64); }

std::vector<nn::Block> two_blocks() {
  std::vector<nn::Block> blocks;
  for (int i = 0; i < 2; ++i) {
    blocks.emplace_back(nn::LayerNorm(16), nn::Attention(16, 4, {.causal = false}),
                        nn::Mlp(16, 32));
    nn::init(blocks.back(), 5);
  }
  return blocks;
}

Tensor all_of(const Shape& shape) { return Tensor::full(shape, 1, DType::boolean); }

}  // namespace

TEST_CASE("nn::Attention: without causal it is attention() of its projections") {
  for (const nn::AttentionOptions& o :
       {nn::AttentionOptions{}, nn::AttentionOptions{.kv_heads = 2, .qk_norm = true},
        nn::AttentionOptions{.kv_heads = 1, .gate = true}}) {
    const nn::Attention layer = encoder_layer(o);
    const Tensor x = some({2, 5, 16}), mask = some({2, 4, 5, 5});
    const std::int64_t kv = layer.kv_heads(), wide = o.gate ? 8 : 4;
    for (const Tensor& m : {Tensor(), mask}) {
      const TensorList parts = split(layer.qkv(x), {4 * wide, 4 * kv, 4 * kv}, 2);
      Tensor q = parts[0].view({2, 5, 4, wide}), gate;
      if (o.gate) {
        gate = q.narrow(3, 4, 4);
        q = q.narrow(3, 0, 4);
      }
      Tensor k = parts[1].view({2, 5, kv, 4});
      if (o.qk_norm) q = (*layer.q_norm)(q), k = (*layer.k_norm)(k);
      Tensor y = attention(q, k, parts[2].view({2, 5, kv, 4}), {.mask = m});
      if (o.gate) y = y * sigmoid(gate);
      CHECK(mismatch(layer(x, {.mask = m}), layer.proj(y.view({2, 5, 16})), 1e-12) == "");
    }
  }
}

TEST_CASE("nn::Attention: packed texts see themselves both ways, and padding hides its keys") {
  const nn::Attention layer = encoder_layer();
  const Tensor x = some({1, 9, 16});
  const Tensor packed = layer(x, {.packing = nn::Packing::of(std::vector<int>{0, 4, 9}, 9)});
  CHECK(mismatch(packed.narrow(1, 0, 4), layer(x.narrow(1, 0, 4)), 1e-12) == "");
  CHECK(mismatch(packed.narrow(1, 4, 5), layer(x.narrow(1, 4, 5)), 1e-12) == "");

  const Tensor rows = some({2, 6, 16}), padding = Tensor::zeros({2, 6}, DType::boolean);
  padding.select(0, 1).narrow(0, 4, 2).fill_(1);
  const Tensor y = layer(rows, {.packing = {.padding = padding}});
  CHECK(mismatch(y.narrow(0, 0, 1), layer(rows.narrow(0, 0, 1)), 1e-12) == "");
  CHECK(mismatch(y.narrow(0, 1, 1).narrow(1, 0, 4), layer(rows.narrow(0, 1, 1).narrow(1, 0, 4)),
                 1e-12) == "");
  const Tensor numbers = some({4, 6, 6});
  for (const Tensor& mask : {numbers, gt(numbers, -0.5)}) {
    const Tensor both = layer(rows, {.packing = {.padding = padding}, .mask = mask});
    const Tensor alone =
        layer(rows.narrow(0, 1, 1).narrow(1, 0, 4), {.mask = mask.narrow(1, 0, 4).narrow(2, 0, 4)});
    CHECK(mismatch(both.narrow(0, 1, 1).narrow(1, 0, 4), alone, 1e-12) == "");
  }
}

TEST_CASE("nn::Attention: a mask in a causal layer hides more than causal does") {
  nn::Attention layer(16, 4);
  nn::init(layer, 3);
  const Tensor x = rand_uniform({1, 5, 16}, -1, 1), mask = all_of({5, 5});
  CHECK(mismatch(layer(x, {.mask = mask}), layer(x), 1e-5) == "");
  mask.select(1, 0).fill_(0);
  CHECK(mismatch(layer(x, {.mask = mask}).narrow(1, 1, 4), layer(x.narrow(1, 1, 4)), 1e-5) == "");
}

TEST_CASE("nn::Attention: gradients of x and of a learned mask, also in blocks that recompute") {
  nn::Attention layer = encoder_layer({.recompute = true});
  const auto f = [&](const TensorList& in) { return layer(in[0], {.mask = in[1]}); };
  CHECK(gradcheck(f, {some({2, 3, 16}), some({2, 4, 3, 3})}) == "");

  // A learned mask that is a leaf, and one that was computed.
  const Tensor rows = rand_uniform({2, 3, 16}, -1, 1), bias = rand_uniform({4, 3, 3}, -1, 1);
  for (const bool leaf : {true, false}) {
    TensorList plain;
    for (const nn::Recompute what : {nn::Recompute::none, nn::Recompute::full}) {
      std::vector<nn::Block> blocks = two_blocks();
      for (nn::Block& b : blocks) b.recompute = what;
      const Tensor x = rows.clone().set_requires_grad(), m = bias.clone().set_requires_grad();
      Tape tape;
      const nn::Stream out = nn::run_blocks(blocks, {x, {}, {}}, {.mask = leaf ? m : m * 2.0});
      const TensorList grads = tape.gradients(sum(square(out.residual + out.delta)),
                                              {x, m, blocks[0].as<nn::Attention>()->qkv.weight});
      CHECK(max(abs(grads[1])).item() > 1e-6);
      if (plain.empty())
        plain = grads;
      else
        for (int i = 0; i < plain.size(); ++i) CHECK(different_bits(grads[i], plain[i]) == "");
    }
  }
}

TEST_CASE("nn::Attention: a mask that changes between forward and backward is an error") {
  for (const bool whole : {false, true}) {
    std::vector<nn::Block> blocks = two_blocks();
    blocks.pop_back();
    if (whole)
      blocks[0].recompute = nn::Recompute::full;
    else
      blocks[0].as<nn::Attention>()->options.recompute = true;
    const Tensor mask = all_of({3, 3});
    Tape tape;
    const nn::Stream out = nn::run_blocks(
        blocks, {rand_uniform({2, 3, 16}, -1, 1).set_requires_grad(), {}, {}}, {.mask = mask});
    const Tensor loss = sum(out.residual + out.delta);
    mask.select(1, 0).fill_(0);
    CHECK(error_of([&] { loss.backward(); }).find("changed in place") != std::string::npos);
  }
}

TEST_CASE("nn::Attention: its text, its work and its errors without causal") {
  const nn::Attention layer = encoder_layer(), causal(16, 4);
  CHECK(layer.describe() == "Attention(4 heads, 4 key heads, 4 wide, not causal)");
  CHECK(causal.describe() == "Attention(4 heads, 4 key heads, 4 wide)");
  CHECK(layer.multiply_adds(7) - layer.multiply_adds(1) == 2 * 16 * 6);
  CHECK(causal.multiply_adds(7) - causal.multiply_adds(1) == 2 * 16 * 3);
  CHECK(error_of([] { nn::Attention(16, 4, {.causal = false, .window = 3}); }) ==
        "attention: window must be 0 without causal, got 3");
  const Tensor x = some({2, 5, 16});
  nn::KvCache cache({layer.cache_entry(2, 8, DType::f64, kCpu)}, 2, 8);
  CHECK(error_of([&] { layer(x, {.cache = &cache}); }) ==
        "attention: a cache needs causal attention");
  const Tensor mask = all_of({5, 5});
  CHECK(error_of([&] {
          layer(x.narrow(0, 0, 1),
                {.packing = nn::Packing::of(std::vector<int>{0, 2, 5}, 5), .mask = mask});
        }) == "attn: a mask cannot go with packed rows or a cache");
  CHECK(error_of([&] { causal(x.to(DType::f32), {.cache = &cache, .mask = mask}); }) ==
        "attn: a mask cannot go with packed rows or a cache");
  const nn::GatedDeltaNet delta(16,
                                {.key_heads = 2, .value_heads = 2, .key_dim = 4, .value_dim = 4});
  CHECK(error_of([&] { delta(x, {.mask = mask}); }) ==
        "delta: mask must be null for this layer, got [5, 5]");
}

}  // namespace weft::attention_module_test
