// A GPT's training step with --fsdp in every layout, compared with one rank.
#include <doctest/doctest.h>

#include <string>
#include <tuple>

#include "weft/tests/examples/session_layouts.h"

namespace weft::examples::session_fsdp_test {

using namespace session_test;

namespace {

constexpr Layout kSharded[] = {{"fsdp2", 2},
                               {"fsdp4", 4},
                               {"replicate2 x fsdp2", 4, 1, 1, 0, false, 2},
                               {"fsdp2 x tp2", 4, 2},
                               {"fsdp2 x tp2 + sp", 4, 2, 1, 0, true}};
constexpr Layout kShardedExperts[] = {{"fsdp4 x ep2", 4, 1, 2},
                                      {"replicate2 x fsdp2", 4, 1, 1, 0, false, 2},
                                      {"fsdp4 x tp2 x ep2", 8, 2, 2, 1, true},
                                      {"replicate2 x fsdp2 x tp2 x ep2", 8, 2, 2, 1, true, 2}};
constexpr Model kForFsdp[] = {
    {"gpt2, tied", false, kGpt2, true},
    {"llama, untied, recomputed", false, kLlama, false, Aux::none, 0, nn::Recompute::full},
    {"latent attention", false, kLlama, false, Aux::none, 0, nn::Recompute::norms, "",
     nn::AttentionKind::mla},
    {"delta nets", false, kLlama, true, Aux::none, 0, nn::Recompute::none, "da"},
    {"experts, sequence loss", true, kLlama, false, Aux::seq},
    {"experts, bias, recomputed", true, kGpt2, true, Aux::bias, 0, nn::Recompute::full}};

// Every model in every layout, with one of four ways to hold it in turn.
template <class F>
void each_sharded_case(F f) {
  int number = 0;
  for (const Model& m : kForFsdp) {
    const auto visit = [&](const Layout& l) {
      if (l.sp && !std::string(m.pattern).empty()) return;  // delta nets need all tokens
      const int turn = number++ % 4;
      f(m, l, turn % 2 ? 1 : -1, turn < 2 ? 1 : 2);
    };
    if (m.experts)
      for (const Layout& l : kShardedExperts) visit(l);
    else
      for (const Layout& l : kSharded) visit(l);
  }
}

GptOptions sharded(GptOptions o, const Layout& l, std::int64_t depth, std::int64_t accumulation) {
  o = laid_out(std::move(o), l, false, accumulation);
  o.parallel.fsdp = true;
  o.parallel.reshard_depth = depth;
  return o;
}

}  // namespace

TEST_CASE("session_fsdp: losses, norm and gradients of the first step equal one rank") {
  for (const auto& [dtype, rate, bound] :
       {std::tuple{DType::f64, 1., 1e-9}, std::tuple{DType::f32, 1024., 1e-5}}) {
    const Model* model = nullptr;
    Result want;
    each_sharded_case(
        [&](const Model& m, const Layout& l, std::int64_t depth, std::int64_t micros) {
          const GptOptions o = plain_sgd(options_of(m, dtype), rate);
          if (model != &m) want = run_alone(o, 1);
          model = &m;
          on_ranks(m, l, sharded(o, l, depth, micros), want, {bound, bound});
        });
  }
}

TEST_CASE("session_fsdp: a rerun gives the same bits, in bf16 too") {
  each_sharded_case([](const Model& m, const Layout& l, std::int64_t depth, std::int64_t micros) {
    if (l.ranks > 4) return;
    test::distributed_test(static_cast<int>(l.ranks), [&](World& world) {
      const GptOptions o = sharded(options_of(m, DType::bf16), l, depth, micros);
      const train::Ranks ranks(world, o);
      const Result once = run(o, 2, ranks), again = run(o, 2, ranks);
      CHECK(once.losses == again.losses);
      CHECK(once.norms == again.norms);
      for (const auto& [name, t] : once.last)
        CHECK(test::different_bits(again.last.at(name), t) == "");
      test::check_same_traces(world);
    });
  });
}

}  // namespace weft::examples::session_fsdp_test
