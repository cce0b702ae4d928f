// Adapters in sharded layouts: loss and the gradient of each a and b equal those of one rank.
#include <doctest/doctest.h>

#include "weft/nn/lora.h"
#include "weft/tests/model_layouts.h"

namespace weft::distributed::lora_layouts_test {
namespace {

using nn::Arch;
using nn::GptConfig;

const nn::LoraOptions kAdapters{.rank = 3, .alpha = 4, .targets = ".*"};

GptConfig dense(Arch arch, std::int64_t key_heads) {
  return {.arch = arch,
          .layers = 2,
          .heads = 4,
          .kv_heads = key_heads,
          .dim = 16,
          .ffn = 24,
          .seq = 6,
          .vocab = 13,  // not divisible by any number of ranks
          .mtp = {.depths = 1}};
}

std::vector<GptConfig> models() {
  GptConfig mixed = dense(Arch::llama, 0);
  mixed.pattern = "da";
  mixed.attention = nn::AttentionKind::mla;
  mixed.delta = {.key_heads = 4, .value_heads = 8, .key_dim = 3, .value_dim = 5, .conv = 3};
  GptConfig sparse = dense(Arch::llama, 4);
  sparse.attn_gate = true;
  sparse.moe = {.experts = 4, .router = {.route = {.topk = 2}}, .ffn = 6, .shared_ffn = 8};
  sparse.moe.shared_gate = true;
  // Two key heads on four ranks: neighbours share one.
  return {dense(Arch::gpt2, 4), dense(Arch::llama, 2), mixed, sparse};
}

test::Parallel make(const GptConfig& c, ProcessGroup& tp, const GptPlanOptions& how,
                    const nn::LoraOptions& adapters = kAdapters) {
  const nn::DeviceScope on_meta(kMeta, DType::f64);
  test::Parallel out{nn::Gpt(c), {}};
  nn::add_lora(out.model, adapters);
  out.layout = parallelize(out.model, tp, gpt_plan(c, how));
  nn::materialise(out.model, kCpu, 1, shard_specs(out.layout));
  test::fill_parameters(out.model, shard_specs(out.layout));
  return out;
}

}  // namespace

TEST_CASE("lora: gradients of adapters in layouts with tp and sp equal one rank's") {
  const test::Batch batch = test::some_batch(4, 6, 13);
  for (const GptConfig& c : models()) {
    CAPTURE(c.pattern);
    CAPTURE(c.kv_heads);
    const nn::DeviceScope in_f64(kCpu, DType::f64);
    nn::Gpt one(c);
    nn::add_lora(one, kAdapters);
    nn::init(one, 1);
    test::fill_parameters(one, {});
    const test::Pass want = test::pass_of(one, batch);
    CHECK(sum(abs(want.gradients.at("head.lora.a"))).item() > 0);
    test::distributed_test({2, 4}, [&](World& w) {
      for (const bool sequence : {false, true}) {
        CAPTURE(w.size());
        CAPTURE(sequence);
        test::Parallel part = make(c, w.all(), {.sequence = sequence});
        const test::Pass got =
            test::gathered(test::pass_of(part.model, batch), part.layout, w.all());
        CHECK(test::difference(got, want, 1e-9) == "");
        // Merged shards compute the same.
        if (c.tied()) continue;
        part.model.eval();
        const Tensor logits = part.model.head(part.model.trunk(batch.ids).hidden);
        nn::merge_lora(part.model);
        CHECK(test::mismatch(part.model.head(part.model.trunk(batch.ids).hidden), logits, 1e-11) ==
              "");
      }
    });
  }
}

TEST_CASE("lora: layouts that are refused") {
  test::distributed_test({2}, [](World& w) {
    const GptConfig c = dense(Arch::llama, 4);
    CHECK(test::error_of([&] { make(c, w.all(), {.overlap = Overlap::ring}); }) ==
          "parallelize: blocks.0.attn.qkv has an adapter, whose products do not overlap with "
          "communication; use Overlap::none");
    CHECK(test::error_of([&] { make(c, w.all(), {}, {.rank = 1, .dropout = 0.5}); }) ==
          "parallelize: the adapter of blocks.0.attn.qkv must have dropout 0 on several ranks, got "
          "0.5");
  });
}

}  // namespace weft::distributed::lora_layouts_test
