#include <doctest/doctest.h>

#include <memory>

#include "weft/autograd/linear.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/view.h"
#include "weft/distributed/comm_ops.h"
#include "weft/distributed/shard_experts.h"
#include "weft/distributed/shared_rows.h"
#include "weft/tests/activation_support.h"
#include "weft/tests/model_layouts.h"

namespace weft::distributed::parallelize_test {
namespace {

using nn::Arch;
using nn::GptConfig;
using test::distributed_test;
using test::error_of;
using test::Pass;

GptConfig small(Arch arch) {
  return {.arch = arch, .layers = 2, .heads = 4, .dim = 16, .ffn = 24, .seq = 12, .vocab = 13};
}

Layout try_plan(const GptConfig& c, int tp, const Plan& plan) {
  const auto world = fake_world(tp - 1, tp);
  const nn::DeviceScope on_meta(kMeta);
  nn::Gpt model(c);
  return parallelize(model, world->all(), plan);
}

Layout try_gpt(const GptConfig& c, int tp, const GptPlanOptions& o = {}) {
  return try_plan(c, tp, gpt_plan(c, o));
}

}  // namespace

TEST_CASE(
    "parallelize: a model keeps its shard's values and a meta model is filled with the same") {
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    distributed_test({1, 2, 4}, [&](World& w) {
      GptConfig c = small(arch);
      c.kv_heads = 2;
      c.mtp.depths = 1;
      nn::Gpt whole(c);
      nn::init(whole, 21);
      nn::Gpt cut(c);
      nn::init(cut, 21);
      const Layout layout = parallelize(cut, w.all(), gpt_plan(c));
      const nn::DeviceScope on_meta(kMeta);
      nn::Gpt fresh(c);
      CHECK(parallelize(fresh, w.all(), gpt_plan(c)).size() == layout.size());
      nn::materialise(fresh, kCpu, 21, shard_specs(layout));
      const NamedTensors a = whole.named_parameters(), b = cut.named_parameters(),
                         d = fresh.named_parameters();
      REQUIRE(a.size() == layout.size());
      for (std::size_t i = 0; i < a.size(); ++i) {
        const ParameterLayout& l = layout.at(a[i].name);
        CHECK(l.spec.whole == a[i].tensor.shape());
        CHECK(b[i].tensor.requires_grad());
        CHECK(test::different_bits(
                  test::whole_of(b[i].tensor, {.spec = l.spec, .tp_cut = true}, w.all()),
                  a[i].tensor.to(DType::f64)) == "");
        CHECK(test::different_bits(b[i].tensor, d[i].tensor) == "");
      }
    });
}

TEST_CASE("layout: which parameters are sharded, partial or replicated") {
  GptConfig c = small(Arch::llama);
  c.kv_heads = 2;
  c.qk_norm = true;
  const Layout plain = try_gpt(c, 4), split = try_gpt(c, 4, {.sequence = true});
  const ParameterLayout& qkv = plain.at("blocks.0.attn.qkv.weight");
  CHECK(qkv.tp_cut);
  CHECK(nn::shape_of(qkv.spec) == Shape{12, 16});
  CHECK(qkv.spec.cuts[0].ranges ==
        std::vector<std::pair<std::int64_t, std::int64_t>>{{12, 16}, {20, 24}, {28, 32}});
  CHECK(qkv.shared_from == 4);
  CHECK(qkv.shared_by == 2);
  CHECK(plain.at("blocks.0.attn.q_norm.weight").tp_partial);
  CHECK(plain.at("blocks.1.mlp.gate_up.weight").spec.cuts[0].ranges ==
        std::vector<std::pair<std::int64_t, std::int64_t>>{{18, 24}, {42, 48}});
  CHECK(plain.at("blocks.1.mlp.down.weight").spec.cuts[0].axis == 1);
  CHECK(nn::shape_of(plain.at("head.weight").spec) == Shape{1, 16});  // 4, 4, 4, 1
  CHECK_FALSE(plain.at("norm.weight").tp_partial);
  CHECK(split.at("norm.weight").tp_partial);
  CHECK(split.at("blocks.0.attn_norm.weight").tp_partial);
  CHECK_FALSE(split.at("embed.weight").tp_partial);
  const Layout gpt2 = try_gpt(small(Arch::gpt2), 2, {.sequence = true});
  CHECK(gpt2.at("blocks.0.attn.proj.bias").tp_partial);
  CHECK(gpt2.at("blocks.0.attn.qkv.bias").tp_cut);
  CHECK_FALSE(gpt2.at("positions.weight").tp_partial);
  CHECK_FALSE(gpt2.contains("head.weight"));  // tied: embed.weight
  CHECK(shard_specs(try_gpt(c, 1)).empty());
  c.qk_norm_joint = true;
  CHECK(error_of([&] { try_gpt(c, 4); }) ==
        "parallelize: blocks.0.attn.qkv has 2 key heads, which do not divide among tp 4");
  CHECK(try_gpt(c, 2).at("blocks.0.attn.k_norm.weight").tp_cut);
}

TEST_CASE("parallelize: errors of a plan name the rule") {
  GptConfig c = small(Arch::gpt2);
  c.heads = 6;
  c.dim = 24;
  CHECK(error_of([&] { try_gpt(c, 4); }) ==
        "parallelize: blocks.0.attn has 6 heads, which do not divide among tp 4");
  c.kv_heads = 3;
  CHECK(error_of([&] { try_gpt(c, 2); }) ==
        "parallelize: blocks.0.attn.qkv has 3 key heads, which do not divide among tp 2, nor tp "
        "among them");
  c = small(Arch::llama);
  c.ffn = 25;
  CHECK(error_of([&] { try_gpt(c, 2); }) ==
        "parallelize: blocks.0.mlp.gate_up has 25 hidden features, which do not divide among tp 2");
  c = small(Arch::llama);
  c.pattern = "da";
  c.delta.key_heads = 3;
  c.delta.value_heads = 6;
  CHECK(error_of([&] { try_gpt(c, 2); }) ==
        "parallelize: blocks.0.delta has 3 key heads, which do not divide among tp 2");
  c = small(Arch::gpt2);
  const auto with = [](Plan plan, const Plan::Rule& rule) {
    plan.rules.insert(plan.rules.begin(), rule);
    return plan;
  };
  CHECK(error_of([&] {
          try_plan(c, 2, with(gpt_plan(c), {"nothing", Placement::whole(false)}));
        }) == "parallelize: the pattern \"nothing\" matches no layer of the model");
  CHECK(error_of([&] {
          try_plan(c, 2, with(gpt_plan(c), {"(norm", Placement::whole(false)}));
        }) == "parallelize: pattern \"(norm\" is not a regular expression");
  CHECK(error_of([&] {
          try_plan(c, 2, with(gpt_plan(c), {"norm", Placement::row({"features", 16})}));
        }) == "parallelize: the rule for norm does not fit a LayerNorm(16)");
  CHECK(error_of([&] {
          try_plan(c, 2, with(gpt_plan(c), {"blocks.0.mlp.up", Placement::column({{"x", 20}})}));
        }) == "parallelize: blocks.0.mlp.up must have 20 features by its rule, got 24");
  Plan less = gpt_plan(c);
  less.rules.pop_back();
  CHECK(error_of([&] { try_plan(c, 2, less); }) ==
        "parallelize: no rule of the plan is about blocks.0.attn_norm.weight");
  distributed_test({2}, [&](World& w) {
    test::Parallel p = test::make_parallel(c, DType::f32, w.all(), {.sequence = true});
    const Tensor ids = Tensor::zeros({1, 5}, DType::i32);
    CHECK(error_of([&] { p.model.hidden(ids); }) ==
          "gpt: the 5 tokens of a batch of 1 sequences do not divide among 2 ranks");
    nn::KvCache cache(c, 1, 8);
    CHECK(error_of([&] {
            p.model.extend(Tensor::zeros({1, 4}, DType::i32), cache);
          }) == "gpt: tokens that are split over ranks cannot go with a cache");
    p.model.head.bias = Tensor::zeros({7});
    CHECK(error_of([&] { p.model.losses(ids.narrow(1, 0, 4), ids.narrow(1, 0, 4)); }) ==
          "loss: a head that is cut over ranks must have no bias");
  });
  c.tie = false;
  const auto world = fake_world(0, 2);
  nn::Gpt biased(c);
  biased.head.bias = Tensor::zeros({13});
  CHECK(error_of([&] { parallelize(biased, world->all(), gpt_plan(c)); }) ==
        "parallelize: a head that is cut over ranks must have no bias");
}

TEST_CASE("parallelize: logits of a sharded model and packed rows") {
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    for (const bool sequence : {false, true})
      distributed_test({2, 4}, [&](World& w) {
        const GptConfig c = small(arch);
        const nn::Gpt whole = test::make_whole(c, DType::f64);
        const test::Parallel p =
            test::make_parallel(c, DType::f64, w.all(), {.sequence = sequence});
        const test::Batch b = test::some_batch(2, 6, 13);
        CHECK(test::mismatch(p.model(b.ids), whole(b.ids), 1e-12) == "");
        const test::Batch row = test::some_batch(1, 12, 13);
        const std::vector<std::int32_t> bounds{0, 5, 5, 7, 12};
        const nn::Packing packing = nn::Packing::of(bounds, 12);
        CHECK(test::mismatch(p.model(row.ids, packing), whole(row.ids, packing), 1e-12) == "");
      });
}

TEST_CASE("parallelize: gated delta nets are cut by key heads, experts are not sharded") {
  GptConfig delta = small(Arch::llama);
  delta.pattern = "da";
  GptConfig grouped = delta;  // two value heads share each key head
  grouped.delta = {.key_heads = 2, .value_heads = 4, .key_dim = 6, .value_dim = 5, .conv = 3};
  GptConfig moe = small(Arch::llama);
  moe.moe = {.experts = 4, .ffn = 8, .shared_ffn = 12, .shared_gate = true};
  moe.moe.router.route.topk = 2;
  moe.moe_every = 2;
  moe.mtp = {.depths = 1, .weight = 0.3};
  const test::Batch batch = test::some_batch(2, 8, 13);
  for (const GptConfig& c : {delta, grouped, moe}) {
    nn::Gpt whole = test::make_whole(c, DType::f64);
    const Pass want = test::pass_of(whole, batch);
    for (const bool sequence : {false, true}) {
      distributed_test({2}, [&](World& w) {
        test::Parallel p = test::make_parallel(c, DType::f64, w.all(), {.sequence = sequence});
        const Pass got = test::gathered(test::pass_of(p.model, batch), p.layout, w.all());
        CHECK(test::difference(got, want, 1e-9) == "");
        if (!c.pattern.empty())
          for (const char* name : {"in_proj.weight", "conv", "a_log", "dt_bias", "out_proj.weight"})
            CHECK(p.layout.at(std::string("blocks.0.delta.") + name).tp_cut);
      });
    }
  }
}

TEST_CASE("parallelize: tensor parallel layers beside experts on the same ranks") {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    GptConfig c = small(arch);
    c.moe = {.experts = 4, .ffn = 8, .shared_ffn = 12, .shared_gate = true};
    c.moe.router.route.topk = 2;
    c.moe.router.balance = {{nn::Balance::sequence, 0.1}, {nn::Balance::aux, 0.05}};
    c.moe_every = 2;
    c.mtp = {.depths = 1, .weight = 0.3};
    const test::Batch batch = test::some_batch(2, 8, 13);
    nn::Gpt whole = test::make_whole(c, DType::f64);
    const Pass want = test::pass_of(whole, batch);
    for (const int etp : {1, 2})
      distributed_test({2}, [&](World& w) {
        DeviceMesh mesh(w, {.tp = 2, .ep = 2 / etp, .etp = etp});
        const nn::DeviceScope in(kMeta, DType::f64);
        nn::Gpt model(c);
        Layout layout = parallelize(model, mesh, gpt_plan(c, {.sequence = true}));
        for (auto& [name, l] : shard_experts(model, mesh, {.sequence_parallel = true}))
          layout[name] = l;
        nn::materialise(model, kCpu, 1, shard_specs(layout));
        test::fill_parameters(model, shard_specs(layout));
        Pass gathered = test::pass_of(model, batch);
        for (auto& [name, g] : gathered.gradients) {
          ParameterLayout l = layout.at(name);
          l.tp_cut = !l.spec.cuts.empty();  // all axes span these two ranks
          g = test::whole_of(g, l, w.all());
        }
        CAPTURE(etp);
        // A rank has its share of the balance losses and the whole of the other losses.
        const Tensor aux = Tensor::full({1}, gathered.aux, DType::f64);
        w.all().all_reduce(aux).wait();
        gathered.loss += aux.item() - gathered.aux;
        CHECK(test::difference(gathered, want, 1e-9) == "");
      });
  }
}

TEST_CASE("shared rows: backward sums a row's gradient over the ranks that share it") {
  distributed_test({4}, [](World& w) {
    // Two shared rows: ranks 0 and 1 have the first, ranks 2 and 3 the second, after a row of their
    // own.
    const auto mine =
        std::make_shared<const std::vector<SharedRows>>(1, SharedRows{1, w.rank() / 2, 1});
    Tensor x = test::random({2, 3}, 1);
    x.set_requires_grad();
    Tape tape;
    const Tensor y = share_rows(x, w.all(), mine, 2);
    CHECK(test::different_bits(y.detach(), x.detach()) == "");
    const Tensor dx = tape.gradients(y, {x}, Tensor::full({2, 3}, w.rank() + 1.0, DType::f64))[0];
    CHECK(dx.select(0, 0).select(0, 1).item() == w.rank() + 1.0);
    CHECK(dx.select(0, 1).select(0, 2).item() == (w.rank() < 2 ? 3 : 7));
    CHECK(error_of([&] { share_rows(Tensor::zeros({2}, DType::i32), w.all(), mine, 2); }) ==
          "share_rows: x must have dtype f32, f64, bf16 or f16, got i32");
  });
}

TEST_CASE("shared rows: gradients of 16 bits are summed in f32 on the way to an f32 main_grad") {
  for (const bool has_bias : {false, true})
    run_ranks(4, [&](World& w) {
      constexpr int kMicros = 6;
      constexpr std::int64_t kRows = 16, kIn = 8, kOut = 3;
      // Rows 1 and 2 of ranks 0 and 1, and of ranks 2 and 3, are the same.
      const auto mine =
          std::make_shared<const std::vector<SharedRows>>(1, SharedRows{1, 2 * (w.rank() / 2), 2});
      const auto random = [](const Shape& shape, int salt) {
        return test::random(shape, salt).to(DType::bf16);
      };
      Tensor weight = random({kOut, kIn}, 1), bias = random({kOut}, 2);
      Tensor sums[2];
      const auto give_sum = [](Tensor& t, Tensor& sum) {
        t.set_requires_grad();
        sum = Tensor::zeros(t.shape(), DType::f32);
        t.set_main_grad(sum);
        t.zero_grad();
      };
      give_sum(weight, sums[0]);
      if (has_bias) give_sum(bias, sums[1]);
      Tensor want = Tensor::zeros({kOut, kIn}, DType::f64),
             want_bias = Tensor::zeros({kOut}, DType::f64);
      for (int micro = 0; micro < kMicros; ++micro) {
        const Tensor x = random({kRows, kIn}, 10 + micro);
        const auto dy_of = [&](int rank) { return random({kRows, kOut}, 100 + 10 * micro + rank); };
        Tape tape;
        const Tensor used = share_rows(weight, w.all(), mine, 4);
        const Tensor y =
            has_bias ? linear(x, used, share_rows(bias, w.all(), mine, 4)) : linear(x, used);
        y.backward(dy_of(w.rank()));
        const NoGradGuard off;
        for (int r = 0; r < 4; ++r) {
          const Tensor dy = dy_of(r).to(DType::f64);
          const Tensor dw = matmul(transpose(dy, 0, 1), x.to(DType::f64)), db = sum(dy, {0});
          for (std::int64_t row = 0; row < kOut; ++row) {
            if (row == 0 ? r != w.rank() : r / 2 != w.rank() / 2) continue;
            want.select(0, row).add_(dw.select(0, row));
            want_bias.select(0, row).add_(db.select(0, row));
          }
        }
      }
      CHECK(test::mismatch(sums[0].to(DType::f64), want, 1e-6) == "");
      if (has_bias) CHECK(test::mismatch(sums[1].to(DType::f64), want_bias, 1e-6) == "");
    });
}

TEST_CASE("shared rows: backward works after their list is destroyed") {
  distributed_test({2}, [](World& w) {
    Tensor x = test::random({2, 3}, 1);
    x.set_requires_grad();
    Tape tape;
    const Tensor y = share_rows(
        x, w.all(), std::make_shared<const std::vector<SharedRows>>(1, SharedRows{0, 0, 1}), 1);
    const Tensor dx = tape.gradients(y, {x}, Tensor::full({2, 3}, w.rank() + 1.0, DType::f64))[0];
    CHECK(dx.select(0, 0).select(0, 2).item() == 3);
    CHECK(dx.select(0, 1).select(0, 2).item() == w.rank() + 1.0);
  });
}

TEST_CASE(
    "shard: a row-parallel layer adds its bias once and uses products instead of the fused op") {
  distributed_test({2}, [](World& w) {
    nn::DeviceScope in(kCpu, DType::f64);
    for (const nn::Activation act : test::kEveryActivation) {
      nn::Mlp mlp(4, 6, {.activation = act});
      normal_(mlp.up.bias.detach(), {1, 1, 0});
      normal_(mlp.down.bias.detach(), {1, 2, 0});
      const Tensor x = test::random({3, 4}, 2), want = mlp(x);
      change_shard(mlp.down, [&](nn::Shard& s) {  // both ranks compute all of it: half of each
        s.leave = [&](Tensor y) { return reduce_from_group(mul(y, 0.5), w.all()); };
      });
      CHECK(test::mismatch(mlp(x), want, 1e-13) == "");
      CHECK(test::mismatch(mlp.down(test::random({3, 6}, 4)).detach(),
                           nn::clone(mlp.down)(test::random({3, 6}, 4)), 1e-13) == "");
      int calls = 0;
      change_shard(mlp.up, [&](nn::Shard& s) {
        s.product = [&](const Tensor& t, const Tensor& weight, const Tensor& bias) {
          ++calls;
          return bias.defined() ? add(t.matmul(weight.t()), bias) : t.matmul(weight.t());
        };
      });
      CHECK(test::mismatch(mlp(x), want, 1e-13) == "");
      CHECK(calls == 1);
    }
  });
}

TEST_CASE("dropout: a shard of the tokens draws its part of the mask") {
  nn::Dropout drop(0.4);
  nn::assign_names(drop);
  const Tensor x = Tensor::ones({3, 4, 5});
  const RandomScope random({.seed = 5, .step = 3, .first_global_row = 7});
  const Tensor want = drop(x).view({12, 5});
  for (const int ranks : {2, 3, 4, 6})
    for (int r = 0; r < ranks; ++r) {
      const std::int64_t n = 12 / ranks;
      const Tensor got = drop(Tensor::ones({1, n, 5}), nn::TokenPart{3, 4, r * n, n});
      CHECK(test::different_bits(got.view({n, 5}), want.narrow(0, r * n, n).contiguous()) == "");
    }
  CHECK(error_of([&] {
          drop(x, nn::TokenPart{3, 4, 0, 6});
        }) == "dropout: x must be the part's 6 tokens, (1, 6, dim), got [3, 4, 5]");
}

}  // namespace weft::distributed::parallelize_test
