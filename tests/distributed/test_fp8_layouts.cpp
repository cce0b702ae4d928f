// A GPT in FP8 with its layers on several ranks.
#include <doctest/doctest.h>

#include <cmath>

#include "weft/nn/fp8.h"
#include "weft/tests/model_layouts.h"

namespace weft::distributed::fp8_layouts_test {
namespace {

using fp8::Recipe;
using fp8::Scaling;
using nn::Arch;
using nn::GptConfig;
using test::Batch;
using test::distributed_test;
using test::Pass;

constexpr std::int64_t kTokens = 16, kVocab = 67;

// The width of each of 2, 3 or 4 ranks is a multiple of 16.
GptConfig small(Arch arch, int ranks) {
  const std::int64_t width = ranks == 3 ? 96 : 64;
  return {.arch = arch,
          .layers = 2,
          .heads = width / 8,
          .dim = width,
          .ffn = width,
          .seq = kTokens,
          .vocab = kVocab,
          .norm_eps = 1e-5,
          .mtp = {.depths = 1, .weight = 0.3}};
}

Batch batch_for(int ranks) { return test::some_batch(ranks, kTokens, kVocab); }

const Recipe kDelayed{.scaling = Scaling::delayed, .history = 2};

// TransformerEngine's tests of the same: 0.4 where each rank scales its own part of weights and of
// inputs, 0.125 with delayed scales, which all ranks share.
double bound_of(const Recipe& r) { return r.scaling == Scaling::delayed ? 0.125 : 0.25; }

// With delayed scales: the second of two steps, whose scales come from the first.
Pass pass_of(nn::Gpt& model, const Batch& batch, const Recipe& recipe, ProcessGroup* ranks) {
  for (const Tensor& t : model.parameters())
    if (t.ndim() == 2)
      t.detach().mul_(0.2);  // so that rounding does not change what is attended to
  nn::prepare_fp8(model, recipe);
  const fp8::Autocast scope(recipe);
  nn::Fp8Step step(model, recipe);
  Pass out = test::pass_of(model, batch);
  if (!step.empty()) {
    fp8::ReduceAmax reduce;
    if (ranks)
      reduce = [ranks](const Tensor& amax) { ranks->all_reduce(amax, Reduce::max).wait(); };
    step.finish(reduce);
    out = test::pass_of(model, batch);
  }
  out.hits.clear();  // the best of nearly equal logits
  return out;
}

Pass one_rank(const GptConfig& config, const Batch& batch, const Recipe& recipe) {
  nn::Gpt model = test::make_whole(config, DType::f32);
  return pass_of(model, batch, recipe, nullptr);
}

Pass on_ranks(const GptConfig& config, const Batch& batch, const Recipe& recipe, World& w,
              const GptPlanOptions& options) {
  test::Parallel p = test::make_parallel(config, DType::f32, w.all(), options);
  return test::gathered(pass_of(p.model, batch, recipe, &w.all()), p.layout, w.all());
}

}  // namespace

TEST_CASE("fp8 layouts: overlap on and off agree, and one rank within the bound of FP8") {
  for (const int ranks : {2, 3, 4})
    for (const Arch arch : {Arch::gpt2, Arch::llama})
      for (const Recipe& recipe : {Recipe{}, kDelayed}) {
        const GptConfig c = small(arch, ranks);
        const Batch batch = batch_for(ranks);
        const Pass want = one_rank(c, batch, recipe);
        distributed_test({ranks}, [&](World& w) {
          CAPTURE(static_cast<int>(arch));
          CAPTURE(static_cast<int>(recipe.scaling));
          CAPTURE(ranks);
          const Pass off = on_ranks(c, batch, recipe, w, {.sequence = true});
          CHECK(test::difference(off, want, bound_of(recipe)) == "");
          CHECK(std::abs(off.loss - want.loss) < 0.005 * want.loss);
          for (const Overlap form : {Overlap::ring, Overlap::pipeline}) {
            const Pass on = on_ranks(c, batch, recipe, w, {.sequence = true, .overlap = form});
            CHECK(test::difference(on, off, 1e-5) == "");
          }
        });
      }
}

TEST_CASE("fp8 layouts: without sequence parallelism, shared key heads, recomputed parts") {
  using nn::Recompute;
  const Batch batch = batch_for(4);
  for (const Recipe& recipe : {Recipe{}, kDelayed, Recipe{.scaling = Scaling::block}}) {
    GptConfig c = small(Arch::llama, 4);
    c.kv_heads = 2;
    const Pass want = one_rank(c, batch, recipe);
    for (const bool sequence : {false, true})
      distributed_test({4}, [&](World& w) {
        CAPTURE(static_cast<int>(recipe.scaling));
        CAPTURE(sequence);
        GptConfig own = c;
        const GptPlanOptions options{.sequence = sequence};
        const Pass plain = on_ranks(own, batch, recipe, w, options);
        // Ranks round their parts of a shared head's gradient, before the sum.
        CHECK(test::difference(plain, want, 0.25) == "");
        own.recompute = Recompute::full;
        CHECK(test::difference(on_ranks(own, batch, recipe, w, options), plain, 0) == "");
        own.recompute = Recompute::selective;
        if (sequence) own.recompute = own.recompute | Recompute::gathered;
        CHECK(test::difference(on_ranks(own, batch, recipe, w, options), plain, 0) == "");
        test::check_same_traces(w);
      });
  }
}

}  // namespace weft::distributed::fp8_layouts_test
