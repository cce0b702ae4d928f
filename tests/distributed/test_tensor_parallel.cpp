#include <doctest/doctest.h>

#include "weft/tests/model_layouts.h"
#include "weft/tests/warm_ranks.h"

namespace weft::distributed::tensor_parallel_test {
namespace {

using nn::Arch;
using nn::GptConfig;
using test::Batch;
using test::distributed_test;
using test::Pass;

constexpr std::int64_t kTokens = 8, kSequences = 2;

GptConfig small(Arch arch) {
  return {.arch = arch,
          .layers = 2,
          .heads = 4,
          .dim = 16,
          .ffn = 24,
          .seq = 12,
          .vocab = 257,
          .norm_eps = 1e-5};
}

struct Named {
  std::string name;
  GptConfig config;
};

std::vector<Named> models() {
  std::vector<Named> out;
  const auto add = [&](const char* name, GptConfig c, auto&& change) {
    change(c);
    out.push_back({name, c});
  };
  const auto nothing = [](GptConfig&) {};
  add("gpt2, tied", small(Arch::gpt2), nothing);
  add("llama, untied", small(Arch::llama), nothing);
  add("gpt2, untied, mtp", small(Arch::gpt2), [](GptConfig& c) {
    c.tie = false;
    c.mtp = {.depths = 2, .weight = 0.3};
  });
  add("llama, tied, mtp of one layer", small(Arch::llama), [](GptConfig& c) {
    c.tie = true;
    c.mtp = {.depths = 2, .weight = 0.3, .repeated = true};
  });
  add("llama, detached mtp", small(Arch::llama),
      [](GptConfig& c) { c.mtp = {.depths = 1, .weight = 0.3, .detached = true}; });
  add("llama, two key heads, norms of queries and keys", small(Arch::llama), [](GptConfig& c) {
    c.kv_heads = 2;
    c.qk_norm = true;
  });
  add("llama, norms over all heads, gates, zero-centred norms", small(Arch::llama),
      [](GptConfig& c) {
        c.qk_norm = c.qk_norm_joint = true;
        c.attn_gate = c.zero_centered_norm = true;
        c.rotary_dim = 2;
        c.clip_qkv = 0.5;
      });
  add("gpt2, one key head", small(Arch::gpt2), [](GptConfig& c) { c.kv_heads = 1; });
  add("no positions, LayerNorm, a gate with biases", small(Arch::llama), [](GptConfig& c) {
    c.positions = nn::Positions::none;
    c.norm = nn::NormKind::layer;
    c.activation = Activation::geglu;
    c.mlp_bias = true;
  });
  add("learned positions, RMSNorm, squared ReLU without biases", small(Arch::gpt2),
      [](GptConfig& c) {
        c.norm = nn::NormKind::rms;
        c.activation = Activation::relu2;
        c.mlp_bias = false;
      });
  add("latent attention", small(Arch::llama), [](GptConfig& c) {
    c.attention = nn::AttentionKind::mla;
    c.mla.q_lora = 6;
  });
  add("latent attention without a latent of queries", small(Arch::llama),
      [](GptConfig& c) { c.attention = nn::AttentionKind::mla; });
  add("gpt2, dropout", small(Arch::gpt2), [](GptConfig& c) { c.dropout = 0.2; });
  add("llama, key heads shared, dropout, mtp", small(Arch::llama), [](GptConfig& c) {
    c.dropout = 0.2;
    c.kv_heads = 2;
    c.mtp = {.depths = 1, .weight = 0.3};
  });
  add("latent attention, dropout", small(Arch::llama), [](GptConfig& c) {
    c.attention = nn::AttentionKind::mla;
    c.dropout = 0.2;
  });
  return out;
}

Pass one_rank(const GptConfig& config, DType dtype, const Batch& batch) {
  nn::Gpt model = test::make_whole(config, dtype);
  return test::pass_of(model, batch);
}

Pass on_ranks(const GptConfig& config, DType dtype, const Batch& batch, World& w,
              const GptPlanOptions& options) {
  test::Parallel p = test::make_parallel(config, dtype, w.all(), options);
  return test::gathered(test::pass_of(p.model, batch), p.layout, w.all());
}

}  // namespace

TEST_CASE("tensor_parallel: loss, norm and every gradient equal those of one rank") {
  const Batch batch = test::some_batch(kSequences, kTokens, 257);
  for (const Named& m : models())
    for (const DType dtype : {DType::f64, DType::f32}) {
      const Pass want = one_rank(m.config, dtype, batch);
      CHECK(want.norm() > 0.01);
      for (const bool sequence : {false, true})
        distributed_test({1, 2, 4}, [&](World& w) {
          CAPTURE(m.name);
          CAPTURE(w.size());
          CAPTURE(sequence);
          const Pass got = on_ranks(m.config, dtype, batch, w, {.sequence = sequence});
          CHECK(test::difference(got, want, dtype == DType::f64 ? 1e-9 : 1e-5) == "");
        });
    }
}

TEST_CASE("tensor_parallel: overlapped communication") {
  const Batch batch = test::some_batch(kSequences, kTokens, 257);
  for (const Named& m : models()) {
    const Pass want = one_rank(m.config, DType::f64, batch);
    for (const Overlap form : {Overlap::ring, Overlap::pipeline})
      distributed_test({2, 4}, [&](World& w) {
        CAPTURE(m.name);
        const GptPlanOptions options{.sequence = true, .overlap = form};
        CHECK(test::difference(on_ranks(m.config, DType::f64, batch, w, options), want, 1e-9) ==
              "");
      });
  }
}

TEST_CASE("tensor_parallel: a rerun and recomputed blocks give the same bits") {
  const Batch batch = test::some_batch(kSequences, kTokens, 257);
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    for (const bool sequence : {false, true})
      distributed_test({2}, [&](World& w) {
        GptConfig c = small(arch);
        c.dropout = 0.1;
        c.mtp = {.depths = 1, .weight = 0.3};
        const Pass first = on_ranks(c, DType::f32, batch, w, {.sequence = sequence});
        CHECK(test::difference(on_ranks(c, DType::f32, batch, w, {.sequence = sequence}), first,
                               0) == "");
        for (const nn::Recompute how : {nn::Recompute::selective, nn::Recompute::full}) {
          c.recompute = how;
          CHECK(test::difference(on_ranks(c, DType::f32, batch, w, {.sequence = sequence}), first,
                                 0) == "");
        }
      });
}

TEST_CASE("tensor_parallel: recomputed parts give the same bits, also of gathered rows") {
  using nn::Recompute;
  const Batch batch = test::some_batch(kSequences, kTokens, 257);
  for (const bool latent : {false, true})
    for (const Overlap form : {Overlap::none, Overlap::ring, Overlap::pipeline})
      distributed_test({2}, [&](World& w) {
        GptConfig c = small(Arch::llama);
        if (latent) c.attention = nn::AttentionKind::mla;
        c.dropout = 0.1;
        c.mtp = {.depths = 1, .weight = 0.3};
        const GptPlanOptions options{.sequence = true, .overlap = form};
        const Pass want = on_ranks(c, DType::f32, batch, w, options);
        for (const Recompute how :
             {Recompute::gathered, Recompute::mlp, Recompute::selective,
              Recompute::selective | Recompute::attention | Recompute::gathered}) {
          c.recompute = how;
          CHECK(test::difference(on_ranks(c, DType::f32, batch, w, options), want, 0) == "");
        }
        c.recompute_every = 2;
        CHECK(test::difference(on_ranks(c, DType::f32, batch, w, options), want, 0) == "");
      });
}

// Each rank keeps its own rows, which are a part of what it gathers.
TEST_CASE("tensor_parallel: recomputing gathered rows saves exactly their bytes") {
  const Batch batch = test::some_batch(kSequences, kTokens, 257);
  distributed_test({2}, [&](World& w) {
    GptConfig c = small(Arch::gpt2);
    const auto kept = [&](nn::Recompute how) {
      c.recompute = how;
      const test::Parallel p = test::make_parallel(c, DType::f32, w.all(), {.sequence = true});
      const std::int64_t before = memory_stats().live_bytes;
      Tape tape;
      const Tensor loss = p.model.losses(batch.ids, batch.targets).total();
      return memory_stats().live_bytes - before;
    };
    const std::int64_t row = 4 * kSequences * kTokens * c.dim;
    CHECK(kept(nn::Recompute::none) - kept(nn::Recompute::gathered) ==
          2 * c.layers * (size_class_bytes(row) - size_class_bytes(row / 2)));
  });
}

TEST_CASE("tensor_parallel: the last rank may have no part of the vocabulary") {
  const Batch batch = test::some_batch(kSequences, kTokens, 5);
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    GptConfig c = small(arch);
    c.vocab = 5;
    c.mtp = {.depths = 1, .weight = 0.3};
    const Pass want = one_rank(c, DType::f64, batch);
    for (const bool sequence : {false, true})
      distributed_test({2, 4}, [&](World& w) {
        CHECK(test::difference(on_ranks(c, DType::f64, batch, w, {.sequence = sequence}), want,
                               1e-9) == "");
        test::check_same_traces(w);
      });
  }
}

TEST_CASE("tensor_parallel: attention takes its heads' part of a mask and of dropped weights") {
  GptConfig c = small(Arch::gpt2);
  c.dropout = 0.3;
  const Tensor x = test::random({2, 5, 16}, 1, DType::f64);
  const Tensor of_heads = test::random({4, 5, 5}, 2, DType::f64);
  const auto output = [&](const nn::Gpt& model, const Tensor& mask) {
    const RandomScope random({.seed = 5, .step = 3});
    return (*model.blocks[1].mixer)(x, {.mask = mask});
  };
  for (const Tensor& mask : {of_heads, gt(of_heads, -0.5), gt(of_heads.narrow(0, 1, 1), -0.5)}) {
    const Tensor want = output(test::make_whole(c, DType::f64), mask);
    distributed_test({1, 2, 4}, [&](World& w) {
      const test::Parallel p = test::make_parallel(c, DType::f64, w.all(), {});
      CHECK(test::mismatch(output(p.model, mask), want, 1e-12) == "");
    });
  }
}

TEST_CASE("tensor_parallel: a warm step allocates nothing") {
  const Batch batch = test::some_batch(kSequences, kTokens, 257);
  if (test::launched_world()) return;  // the counter sees only one process
  for (const GptPlanOptions& options :
       {GptPlanOptions{}, GptPlanOptions{.sequence = true},
        GptPlanOptions{.sequence = true, .overlap = Overlap::ring},
        GptPlanOptions{.sequence = true, .overlap = Overlap::pipeline}})
    run_ranks(2, [&](World& w) {
      GptConfig c = small(Arch::llama);
      c.kv_heads = 1;
      c.dropout = 0.1;
      test::Parallel p = test::make_parallel(c, DType::f32, w.all(), options);
      const std::vector<Tensor> parameters = p.model.parameters();
      const auto step = [&] {
        const RandomScope random({.seed = 5, .step = 3});
        Tape tape;
        p.model.losses(batch.ids, batch.targets).total().backward();
        for (const Tensor& t : parameters) t.set_grad({});
      };
      test::check_warm(w, step);
    });
}

}  // namespace weft::distributed::tensor_parallel_test
