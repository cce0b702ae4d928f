// A GPT's training step in every layout, compared with one rank. test_layouts.cpp covers several
// buckets that end within layers.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "weft/distributed/flight_recorder.h"
#include "weft/tests/examples/session_layouts.h"

namespace weft::examples::session_layouts_test {
namespace {

using namespace session_test;

constexpr Layout kDense[] = {{"dp2", 2},
                             {"dp4", 4},
                             {"tp2", 2, 2},
                             {"tp4", 4, 4},
                             {"tp2 x dp2", 4, 2},
                             {"tp2 + sp", 2, 2, 1, 0, true},
                             {"tp2 + sp x dp2", 4, 2, 1, 0, true}};
constexpr Layout kExperts[] = {{"dp2", 2},
                               {"dp4", 4},
                               {"ep2", 2, 1, 2},
                               {"ep4", 4, 1, 4},
                               {"ep2 x dp2", 4, 1, 2},
                               {"tp2 + sp", 2, 2, 1, 0, true},
                               {"tp4 + sp", 4, 4, 1, 0, true},
                               {"tp2 + sp x dp2", 4, 2, 1, 0, true},
                               {"tp2 x ep2, etp 1", 4, 2, 2, 1, true},
                               {"tp2 x ep2, etp 2", 4, 2, 2, 2, true},
                               {"tp2 x ep4, etp 1", 4, 2, 4, 1, true}};

constexpr Model kModels[] = {{"gpt2, tied", false, kGpt2, true},
                             {"gpt2, untied", false, kGpt2, false},
                             {"llama, tied", false, kLlama, true},
                             {"llama, untied", false, kLlama, false},
                             {"experts, sequence loss, untied", true, kLlama, false, Aux::seq},
                             {"experts, bias, tied", true, kLlama, true, Aux::bias},
                             {"experts, sequence loss, gpt2, tied", true, kGpt2, true, Aux::seq}};
// These losses depend on the tokens of a data-parallel rank's micro-batch.
constexpr Model kByBatch[] = {
    {"experts, aux loss", true, kLlama, false, Aux::aux},
    {"experts, aux loss, capacity", true, kGpt2, true, Aux::aux, 0.8},
    {"experts, bias, capacity", true, kLlama, true, Aux::bias, 1, nn::Recompute::full}};

template <class F>
void each_case(F f) {
  for (const Model& m : kModels) {
    const auto visit = [&](const Layout& l) {
      for (const bool zero : {false, true})
        for (const std::int64_t accumulation : {1, 4}) f(m, l, zero, accumulation);
    };
    if (m.experts)
      for (const Layout& l : kExperts) visit(l);
    else
      for (const Layout& l : kDense) visit(l);
  }
}

// All layouts; the reference runs once per model.
void against_one_rank(DType dtype, int steps, const Tolerance& tolerance, double sgd_rate,
                      bool every_case) {
  const Model* model = nullptr;
  Result want;
  each_case([&](const Model& m, const Layout& l, bool zero, std::int64_t accumulation) {
    // The longer tests use one of the four ways to run a layout; it varies over layouts and models.
    const auto number = (&m - kModels) + (&l - (m.experts ? kExperts : kDense));
    if (!every_case && (zero ? 2 : 0) + (accumulation > 1 ? 1 : 0) != number % 4) return;
    GptOptions o = options_of(m, dtype);
    if (sgd_rate > 0) o = plain_sgd(o, sgd_rate);
    if (model != &m) want = run_alone(o, steps);
    model = &m;
    on_ranks(m, l, laid_out(o, l, zero, accumulation), want, tolerance);
  });
}

}  // namespace

TEST_CASE("session: the search for what is not finite waits for the parameters of other ranks") {
  // A slow link: without the wait, the parameters would still be on their way.
  distributed::run_ranks(2,
                         [](World& world) {
                           const GptOptions o =
                               laid_out(options_of(kModels[0], DType::f32), kDense[0], true, 1);
                           const train::Ranks ranks(world, o);
                           GptStep gpt(o, ranks);
                           gpt.step(1, batch_of(1, ranks.first_row(), ranks.rows(), o.model.vocab));
                           const auto unwaited = [&] {
                             const auto all = world.recorder().entries();
                             return std::count_if(all.begin(), all.end(),
                                                  [](const auto& e) { return e.waited_s == 0; });
                           };
                           CHECK(unwaited() > 0);
                           CHECK(gpt.step.first_non_finite().what.empty());
                           CHECK(unwaited() == 0);
                         },
                         {.link = {.latency_s = 0.005}});
}

TEST_CASE("session: f64 losses, norm and gradients of the first step equal one rank") {
  against_one_rank(DType::f64, 1, {1e-9, 1e-9}, 1, true);
}

TEST_CASE("session: f64 aux loss and capacities equal one rank with the same micro-batches") {
  for (const Model& m : kByBatch)
    for (const std::int64_t micro_batch : {16, 8, 4, 2}) {
      GptOptions o = plain_sgd(options_of(m, DType::f64), 1);
      o.micro_batch = micro_batch;
      const Result want = run_alone(o, 1);
      for (const Layout& l : kExperts)
        for (const std::int64_t accumulation : {1, 4}) {
          const GptOptions own = laid_out(o, l, accumulation == 4, accumulation);
          if (own.micro_batch == micro_batch) on_ranks(m, l, own, want, {1e-9, 1e-9});
        }
    }
}

TEST_CASE("session: f32 losses, norm and gradients of the first step with and without ZeRO") {
  against_one_rank(DType::f32, 1, {1e-5, 1e-5}, 1024, true);
}

TEST_CASE("session: f32 weights after 20 steps of SGD and losses of 20 steps of AdamW") {
  against_one_rank(DType::f32, 20, {1e-4, 1, 1e-5}, 0.1, false);
  against_one_rank(DType::f32, 20, {1e-4, 1}, 0, false);
}

TEST_CASE("session: a rerun gives the same bits and ZeRO has the bits of the plain optimizer") {
  // Each layout with one of the models in turn.
  const auto repeat = [](const Model& m, const Layout& l) {
    test::distributed_test(static_cast<int>(l.ranks), [&](World& world) {
      CAPTURE(std::string(m.name));
      CAPTURE(std::string(l.name));
      std::vector<Result> results;
      for (const bool zero : {false, false, true}) {
        const GptOptions o = laid_out(options_of(m, DType::f32), l, zero, 1);
        const train::Ranks ranks(world, o);
        results.push_back(run(o, 5, ranks));
      }
      for (const Result& r : results) {
        CHECK(r.losses == results[0].losses);
        CHECK(r.norms == results[0].norms);
        for (const auto& [name, t] : results[0].last)
          CHECK(test::different_bits(r.last.at(name), t) == "");
      }
    });
  };
  for (std::size_t i = 0; i < std::size(kDense); ++i) repeat(kModels[i % 4], kDense[i]);
  for (std::size_t i = 0; i < std::size(kExperts); ++i) repeat(kModels[4 + i % 3], kExperts[i]);
}

TEST_CASE("session: every rank makes the same collectives in a step") {
  each_case([](const Model& m, const Layout& l, bool zero, std::int64_t accumulation) {
    test::distributed_test(static_cast<int>(l.ranks), [&](World& world) {
      CAPTURE(std::string(m.name));
      CAPTURE(std::string(l.name));
      const GptOptions o = laid_out(options_of(m, DType::f32), l, zero, accumulation);
      const train::Ranks ranks(world, o);
      run(o, 1, ranks);
      test::check_same_traces(world);
    });
  });
}

namespace {

bool is_frozen(const std::string& name) {
  return name.starts_with("embed") || name.starts_with("blocks.0.") || name == "head.weight";
}

// A few steps with these parameters frozen; "" when exactly these kept their values.
std::string moved_wrongly(const GptOptions& o, const train::Ranks& ranks) {
  GptStep gpt(o, ranks);
  NamedTensors parameters = gpt.gpt.model.named_parameters();
  std::vector<Tensor> before;
  int frozen = 0;
  for (NamedTensor& p : parameters) {
    frozen += is_frozen(p.name);
    if (is_frozen(p.name)) p.tensor.set_requires_grad(false);
    before.push_back(p.tensor.detach().clone());
  }
  for (int step = 1; step <= 3; ++step)
    gpt.step(step, batch_of(step, ranks.first_row(), ranks.rows(), o.model.vocab));
  gpt.step.model_slices();  // waits for parameters in flight
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool moved = test::different_bits(parameters[i].tensor, before[i]) != "";
    if (moved == is_frozen(parameters[i].name)) return parameters[i].name;
  }
  return frozen > 3 ? "" : "nothing was frozen";
}

}  // namespace

TEST_CASE("session: a frozen parameter stays unchanged in every layout") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(name(dtype));
    GptOptions o = options_of(kModels[3], dtype);
    o.optimizer.lr = o.optimizer.min_lr = 1e-2;
    CHECK(moved_wrongly(o, train::Ranks::alone(o)) == "");
    for (const Layout& l : kDense)
      for (const bool zero : {false, true})
        test::distributed_test(static_cast<int>(l.ranks), [&](World& world) {
          CAPTURE(std::string(l.name));
          CAPTURE(zero);
          const GptOptions own = laid_out(o, l, zero, 2);
          const train::Ranks ranks(world, own);
          CHECK(moved_wrongly(own, ranks) == "");
        });
  }
}

}  // namespace weft::examples::session_layouts_test
