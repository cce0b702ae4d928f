// Experts in a whole model.
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/core/allocator.h"
#include "weft/core/random.h"
#include "weft/nn/gpt.h"
#include "weft/nn/router_step.h"
#include "weft/optim/adamw.h"
#include "weft/tests/support.h"

namespace weft::gpt_moe_test {

namespace {

using nn::Arch;
using nn::Gpt;
using nn::GptConfig;
using nn::Recompute;
using test::different_bits;
using test::error_of;
using test::mismatch;

GptConfig tiny(Arch arch = Arch::llama) {
  return {.arch = arch,
          .layers = 3,
          .heads = 2,
          .dim = 16,
          .ffn = 24,
          .seq = 8,
          .vocab = 13,
          .moe = {.experts = 4,
                  .router = {.balance = {{nn::Balance::aux, 0.01}}, .z_loss = 0.001},
                  .ffn = 10,
                  .shared_ffn = 6}};
}

const Tensor kIds = test::random({2, 8}, 1, DType::i32);

struct Pass {
  double loss, aux;
  TensorList grads;
};
Pass pass(Gpt& model) {
  Tape tape;
  const nn::Trunk t = model.trunk(kIds);
  const Tensor ce = model.loss(t.hidden, model.head, kIds);
  const Tensor loss = t.aux.defined() ? add(ce, t.aux) : ce;
  TensorList wanted;
  for (const Tensor& p : model.parameters()) wanted.push_back(p);
  return {ce.item(), t.aux.defined() ? t.aux.item() : 0, tape.gradients(loss, wanted)};
}

}  // namespace

TEST_CASE("gpt with experts: parameter count follows the formula for sparse and dense layers") {
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    for (int kind = 0; kind < 7; ++kind) {
      CAPTURE(kind);
      GptConfig c = tiny(arch);
      if (kind == 1) c.moe_every = 2;
      if (kind == 2) c.moe_layers = {0, 1, 0};
      if (kind == 3) c.moe.latent = 4;
      if (kind == 4) c.moe.shared_gate = true;
      if (kind == 6) c.dense_layers = 1;
      if (kind == 5) c.moe = {.experts = 5, .router = {.bias = true}};
      const Gpt model(c);
      CHECK(model.parameter_count() == c.parameter_count());
      for (std::size_t i = 0; i < 3; ++i) {
        const bool experts = kind == 1 ? i != 1 : kind == 2 ? i == 1 : kind == 6 ? i > 0 : true;
        CHECK((model.blocks[i].as<nn::MoE>() != nullptr) == experts);
        CHECK((model.blocks[i].as<nn::Mlp>() != nullptr) == !experts);
      }
    }
}

TEST_CASE("gpt with experts: FLOPs count only the experts that a token uses") {
  // Two experts of half the width cost the same as the dense MLP, apart from the router.
  GptConfig dense = tiny(), sparse = dense;
  dense.moe = {};
  sparse.moe = {.experts = 16, .ffn = 12};
  CHECK(sparse.flops_per_token() == dense.flops_per_token() + 6.0 * 3 * 16 * 16);
  sparse.moe.shared_ffn = 5;
  CHECK(sparse.flops_per_token() == dense.flops_per_token() + 6.0 * 3 * (16 * 16 + 3 * 16 * 5));
}

TEST_CASE("gpt with experts: recomputing keeps loss, gradients and aux") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    GptConfig c = tiny(arch);
    c.moe_layers = {1, 0, 1};
    Gpt plain(c);
    nn::init(plain, 5);
    const Pass want = pass(plain);
    CHECK(want.aux > 0);
    for (const Recompute r : {Recompute::selective, Recompute::full}) {
      c.recompute = r;
      Gpt again(c);
      nn::init(again, 5);
      const Pass got = pass(again);
      CHECK(got.loss == want.loss);
      CHECK(got.aux == want.aux);
      for (int i = 0; i < got.grads.size(); ++i)
        CHECK(different_bits(got.grads[i], want.grads[i]) == "");
    }
  }
}

TEST_CASE("gpt with experts: a global balance loss is recomputed with the counts of its own pass") {
  // Two forward passes before the backward, or a layer shared by two depths: the counts have
  // advanced when a block is recomputed. Where a weight is used twice, recomputing adds two
  // finished gradients instead of accumulating inside a product, so the bits may differ.
  GptConfig c = tiny();
  c.moe.router.balance = {{nn::Balance::global, 0.5}};
  for (const bool repeated : {false, true})
    for (const bool both : {false, true}) {
      c.mtp = {.depths = 2, .weight = 0.5, .repeated = repeated};
      TensorList plain;
      for (const Recompute r : {Recompute::none, Recompute::selective, Recompute::full}) {
        c.recompute = r;
        const nn::DeviceScope f64(kCpu, DType::f64);
        Gpt model(c);
        nn::init(model, 5);
        Tape tape;
        Tensor loss = model.losses(kIds.narrow(0, 0, 1), kIds.narrow(0, 1, 1)).total();
        const Tensor next = model.losses(kIds.narrow(0, 1, 1), kIds.narrow(0, 0, 1)).total();
        if (both) loss = add(loss, next);
        loss.backward();
        TensorList got{loss.detach(), next.detach()};
        for (const Tensor& p : model.parameters()) got.push_back(p.grad());
        for (const NamedTensor& b : model.buffers())
          if (b.name.ends_with("global_counts") || b.name.ends_with("loss_sums"))
            got.push_back(b.tensor);
        const nn::Router& last = model.mtp[0].block.as<nn::MoE>()->router;
        CHECK(sum(last.global_counts).item_int() == 2 * 8 * 2 * (repeated ? 2 : 1));
        if (plain.empty()) plain = got;
        for (int i = 0; i < got.size(); ++i) {
          if (both || repeated)
            CHECK(mismatch(got[i], plain[i], 1e-13) == "");
          else
            CHECK(different_bits(got[i], plain[i]) == "");
        }
      }
    }
}

TEST_CASE("gpt with experts: the layers of multi-token prediction have experts too") {
  GptConfig c = tiny();
  c.mtp = {.depths = 2};
  Gpt model(c);
  nn::init(model, 1);
  CHECK(model.parameter_count() == c.parameter_count());
  Tape tape;
  const nn::GptLosses all = model.losses(kIds, kIds);
  CHECK(all.aux.item() > model.trunk(kIds).aux.item());
  // The backward pass from the total reaches the routers of the MTP layers.
  all.total().backward();
  CHECK(model.mtp[1].block.as<nn::MoE>()->router.weight.grad().abs().max().item() > 0);
}

TEST_CASE("gpt with experts: losses keep their weights in one batch and in micro-batches") {
  GptConfig c = tiny();
  c.moe.router.balance = {{nn::Balance::sequence, 0.5}};
  c.moe.router.z_loss = 0.1;
  c.mtp = {.depths = 2, .weight = 0.7};
  const nn::DeviceScope f64(kCpu, DType::f64);
  Gpt model(c);
  nn::init(model, 5);
  const Tensor ids = test::random({4, 8}, 1, DType::i32);
  const Tensor targets = test::random({4, 8}, 2, DType::i32).clone();
  // The halves have 13 and 12 targets, in each of them depth 1 has 11 and depth 2 has 9.
  targets.narrow(0, 0, 1).narrow(1, 5, 3).fill_(-100);
  for (const std::int64_t t : {0, 3, 5, 6}) targets.narrow(0, 2, 1).narrow(1, t, 1).fill_(-100);
  const auto gradients = [&](auto run) {
    model.zero_grad();
    run();
    TensorList out;
    for (const Tensor& p : model.parameters()) out.push_back(p.grad());
    return out;
  };
  nn::GptLosses whole;
  const TensorList want = gradients([&] {
    Tape tape;
    whole = model.losses(ids, targets);
    whole.total().backward();
  });
  REQUIRE(whole.main.count.item_int() == 25);
  const TensorList parts = gradients([&] {
    for (const std::int64_t first : {0, 2}) {
      Tape tape;
      const nn::GptLosses l = model.losses(ids.narrow(0, first, 2), targets.narrow(0, first, 2));
      REQUIRE(l.main.count.item_int() == (first == 0 ? 13 : 12));
      l.total({whole.main.count, whole.mtp_count, whole.tokens}).backward();
    }
  });
  // By definition: (mean + 0.7 / 2 * the sum of the depths' means + the router losses) * 25.
  const TensorList defined = gradients([&] {
    Tape tape;
    const nn::GptLosses l = model.losses(ids, targets);
    Tensor sum = add(div(l.main.loss, 25), l.aux);
    for (int d = 0; d < 2; ++d) sum = add(sum, mul(div(l.mtp[d], l.mtp_count[d].item()), 0.35));
    mul(sum, 25).backward();
  });
  for (int i = 0; i < want.size(); ++i) {
    CHECK(mismatch(parts[i], want[i], 1e-12) == "");
    CHECK(mismatch(defined[i], want[i], 1e-12) == "");
  }
}

TEST_CASE("gpt with experts: rows side by side give the gradients of separate rows") {
  // Three sequences and padding, and two sequences.
  const std::vector<std::int32_t> bounds[] = {{0, 3, 5, 8}, {0, 6, 8}};
  const std::vector<std::uint8_t> is_padding[] = {{0, 0, 1}, {0, 0}};
  const nn::DeviceScope f64(kCpu, DType::f64);
  for (const auto attention : {nn::AttentionKind::mha, nn::AttentionKind::mla})
    for (const auto recompute : {nn::Recompute::none, nn::Recompute::full}) {
      CAPTURE(std::string(word_of(nn::kRecomputeWords, recompute)));
      GptConfig c = tiny();
      c.attention = attention;
      c.recompute = recompute;
      c.dropout = 0.3;
      c.moe.router.balance = {{nn::Balance::sequence, 0.5}};
      c.moe.router.z_loss = 0.1;
      c.mtp = {.depths = 2, .weight = 0.7};
      Gpt model(c);
      nn::init(model, 5);
      const Tensor ids = test::random({1, 16}, 1, DType::i32),
                   targets = test::random({1, 16}, 2, DType::i32);
      nn::Packing both = nn::Packing::of(std::vector{0, 3, 5, 8, 14, 16}, 8, kCpu,
                                         std::vector<std::uint8_t>{0, 0, 1, 0, 0});
      both.rows = 2;
      nn::GptLosses whole;
      {
        const RandomScope random({.seed = 3, .step = 1, .first_global_row = 2});  // rows 4 and 5
        Tape tape;
        whole = model.losses(ids, targets, both);
        whole.total().backward();
      }
      CHECK(whole.tokens.item_int() == 13);
      const Tensor routed = nn::RouterStep(model).losses().kinds;
      TensorList want;
      for (const Tensor& p : model.parameters()) want.push_back(p.grad().clone());
      model.zero_grad();
      nn::RouterStep(model).finish(0);
      for (std::uint64_t row = 0; row < 2; ++row) {
        const RandomScope random({.seed = 3, .step = 1, .first_global_row = 4 + row});
        const auto first = static_cast<std::int64_t>(8 * row);
        Tape tape;
        const nn::GptLosses l =
            model.losses(ids.narrow(1, first, 8), targets.narrow(1, first, 8),
                         nn::Packing::of(bounds[row], 8, kCpu, is_padding[row]));
        l.total({whole.main.count, whole.mtp_count, whole.tokens}).backward();
      }
      for (int i = 0; i < want.size(); ++i)
        CHECK(mismatch(model.parameters()[static_cast<std::size_t>(i)].grad(), want[i], 1e-11) ==
              "");
      CHECK(mismatch(nn::RouterStep(model).losses().kinds, routed, 1e-12) == "");
    }
}

TEST_CASE("gpt with experts: a repeated layer's router counts once and adds its mean loss") {
  GptConfig c = tiny();
  c.mtp = {.depths = 3, .repeated = true};
  Gpt model(c);
  nn::init(model, 1);
  Tape tape;
  const nn::GptLosses all = model.losses(kIds, kIds);
  auto [h, want] = model.trunk(kIds);
  Tensor later = kIds;
  for (int depth = 1; depth <= 3; ++depth) {
    later = nn::roll_left(later);
    nn::Trunk next = model.mtp_trunk(depth, later, h);
    h = next.hidden;
    want = add(want, mul(next.aux, 1. / 3));
  }
  CHECK(all.aux.item() == doctest::Approx(want.item()).epsilon(1e-6).scale(0));
}

TEST_CASE("gpt: a dense model has no aux") {
  GptConfig c = tiny();
  c.moe = {};
  Tape tape;
  CHECK_FALSE(Gpt(c).trunk(kIds).aux.defined());
}

TEST_CASE("gpt with experts: 30 steps learn a repeated text and are reproducible bit by bit") {
  std::vector<double> first;
  for (int round = 0; round < 2; ++round) {
    Gpt model(tiny());
    nn::init(model, 3);
    optim::AdamW opt(model.named_parameters(), {.lr = 0.01});
    std::vector<double> losses;
    for (int i = 0; i < 30; ++i) {
      Tape tape;
      const nn::Trunk t = model.trunk(kIds);
      const Tensor ce = model.loss(t.hidden, model.head, kIds);
      losses.push_back(ce.item());
      add(ce, t.aux).backward();
      opt.step();
      opt.zero_grad();
    }
    CHECK(losses.front() > 2.4);
    CHECK(losses.back() < 0.5);
    if (round == 0)
      first = losses;
    else
      CHECK(losses == first);
  }
}

TEST_CASE("gpt with experts: cached decoding gives the logits of the full forward") {
  Gpt model(tiny());
  nn::init(model, 3);
  nn::KvCache cache(model.config, 1, 8);
  const Tensor row = kIds.narrow(0, 0, 1);
  const Tensor whole = model(row);
  for (std::int64_t i = 0; i < 8; ++i)
    CHECK(mismatch(model.decode(row.narrow(1, i, 1), cache).view({13}),
                   whole.select(0, 0).select(0, i), 1e-5) == "");
}

TEST_CASE("gpt with experts: evaluation ignores the capacity in one pass and token by token") {
  GptConfig c = tiny();
  c.moe.router.capacity_factor = 1;
  Gpt model(c);
  nn::init(model, 3);
  const Tensor dropped = model(kIds);
  model.eval();
  const Tensor whole = model(kIds);
  CHECK(different_bits(dropped, whole) != "");
  nn::KvCache cache(model.config, 2, 8);
  for (std::int64_t i = 0; i < 8; ++i)
    CHECK(mismatch(model.decode(kIds.narrow(1, i, 1), cache), contiguous(whole.select(1, i)),
                   1e-5) == "");
}

TEST_CASE("gpt with experts: meta predicts the peak of a step whose capacity evens the load") {
  const auto peak = [](Device device) {
    GptConfig c = tiny();
    c.moe.router.capacity_factor = 1;
    const nn::DeviceScope scope(device);
    Gpt model(c);
    const Tensor ids = kIds.to(device);
    std::int64_t before = 0;
    for (int i = 0; i < 2; ++i) {  // in the second step gradients exist
      before = memory_stats(device).live_bytes;
      reset_peak(device);
      Tape tape;
      model.losses(ids, ids).total().backward();
    }
    return memory_stats(device).peak_bytes - before;
  };
  CHECK(peak(kMeta) == peak(kCpu));
}

TEST_CASE("gpt with experts: hidden() refuses to drop the routers' loss") {
  const std::string refused =
      "gpt: hidden() would lose what the routers add to the loss; use losses() or trunk()";
  GptConfig c = tiny();
  Gpt model(c);
  {
    Tape tape;
    CHECK(error_of([&] { model.hidden(kIds); }) == refused);
    CHECK(error_of([&] { model(kIds); }) == refused);
    model.eval();  // no loss in evaluation
    CHECK(model.hidden(kIds).shape() == Shape{2, 8, 16});
  }
  model.train();
  CHECK(model.hidden(kIds).shape() == Shape{2, 8, 16});  // no tape records
  c.moe.router.balance = {};
  c.moe.router.z_loss = 0;
  Tape tape;
  CHECK(Gpt(c).hidden(kIds).shape() == Shape{2, 8, 16});
}

TEST_CASE("gpt with experts: errors name the rule") {
  const auto text = [](auto change) {
    GptConfig c = tiny();
    change(c);
    return error_of([&] { c.validate(); });
  };
  CHECK(text([](GptConfig& c) { c.moe.experts = -1; }) ==
        "gpt: experts must be at least 0, got -1");
  CHECK(text([](GptConfig& c) { c.moe.ffn = -1; }) == "gpt: expert_ffn must be at least 0, got -1");
  CHECK(text([](GptConfig& c) { c.moe.latent = -1; }) == "gpt: latent must be at least 0, got -1");
  CHECK(text([](GptConfig& c) { c.moe.router.route.topk = 5; }) ==
        "router: topk must be at most the number of experts 4, got 5");
  CHECK(text([](GptConfig& c) { c.moe.router.z_loss = -1; }) ==
        "gpt: z_loss must be at least 0, got -1");
  CHECK(text([](GptConfig& c) { c.dense_layers = 9; }) ==
        "gpt: experts need a layer, but dense_layers 9 and moe_every 1 leave none of 3");
  CHECK(text([](GptConfig& c) { c.moe_every = 0; }) == "gpt: moe_every must be at least 1, got 0");
  CHECK(text([](GptConfig& c) { c.moe_layers = {1}; }) ==
        "gpt: moe_layers must have one number for each of the 3 layers, got 1");
  CHECK(text([](GptConfig& c) {
          c.moe_layers = {1, 0, 2};
        }) == "gpt: moe_layers must hold 0 or 1, got 2");
  CHECK(text([](GptConfig& c) {
          c.moe = {};
          c.moe_layers = {0, 0, 0};
        }) == "gpt: moe_layers needs experts, got experts 0");
}

}  // namespace weft::gpt_moe_test
