// A GPT's training step in every layout, compared with one rank. test_layouts.cpp covers several
// buckets that end within layers.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "weft/core/random.h"
#include "weft/distributed/flight_recorder.h"
#include "weft/tests/examples/gpt_step.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::examples::session_layouts_test {
namespace {

using distributed::World;

constexpr std::int64_t kRows = 16, kTokens = 8;

// Row i of the global batch of every step is the same for all layouts.
data::Batch batch_of(std::int64_t step, std::int64_t first, std::int64_t rows, std::int64_t vocab) {
  const Tensor text = Tensor::empty({kRows, kTokens + 1});
  uniform_(text, {17, static_cast<std::uint64_t>(step), 0}, 0, static_cast<double>(vocab));
  const Tensor ids = text.to(DType::i32).narrow(0, first, rows);
  return {ids.narrow(1, 0, kTokens).clone(), ids.narrow(1, 1, kTokens).clone()};
}

struct Layout {
  const char* name;
  std::int64_t ranks, tp = 1, ep = 1, etp = 0;
  bool sp = false;
  std::int64_t dp_replicate = 1;
};
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

struct Model {
  const char* name;
  bool experts;
  nn::Arch arch;
  bool tie;
  Aux aux = Aux::none;
  double capacity = 0;
  nn::Recompute recompute = nn::Recompute::none;
  const char* pattern = "";
  nn::AttentionKind attention = nn::AttentionKind::mha;
};
// A vocabulary of 37 is not divisible by any number of ranks.
constexpr nn::Arch kGpt2 = nn::Arch::gpt2, kLlama = nn::Arch::llama;
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

GptOptions options_of(const Model& m, DType dtype) {
  GptOptions o;
  o.model.arch = m.arch;
  o.model.tie = m.tie;
  o.model.layers = 2;
  o.model.heads = 4;
  o.model.dim = 16;
  o.model.ffn = 24;
  o.model.seq = kTokens;
  o.model.vocab = 37;
  o.model.mtp.depths = m.experts ? 1 : 0;
  o.model.moe.experts = m.experts ? 4 : 0;
  o.model.moe.ffn = 8;
  o.model.moe.shared_ffn = 8;
  o.model.moe.router.route.score = m.experts ? RouterScore::sigmoid : RouterScore::softmax;
  o.balance.aux = m.aux;
  o.model.moe.router.capacity_factor = m.capacity;
  o.model.recompute = m.recompute;
  o.model.pattern = m.pattern;
  o.model.attention = m.attention;
  o.model.moe.router.z_loss = m.experts ? 1e-3 : 0;
  o.batch = kRows;
  o.optimizer.schedule = optim::Schedule::Kind::constant;
  o.optimizer.warmup = 0;
  o.machine.dtype = dtype;
  return o;
}

// An SGD step subtracts the gradient times the rate. A high rate makes this difference large
// relative to the rounding of the weights.
GptOptions plain_sgd(GptOptions o, double lr) {
  o.optimizer.kind = optim::Kind::sgd;
  o.optimizer.lr = o.optimizer.min_lr = lr;
  o.optimizer.beta1 = o.optimizer.weight_decay = o.optimizer.clip = 0;
  return o;
}

GptOptions laid_out(GptOptions o, const Layout& l, bool zero, std::int64_t accumulation) {
  o.parallel.ranks = l.ranks;
  o.parallel.tp = l.tp;
  o.parallel.ep = l.ep;
  o.parallel.etp = l.etp;
  o.parallel.sp = l.sp;
  o.parallel.zero = zero;
  o.parallel.dp_replicate = l.dp_replicate;
  o.micro_batch = kRows / (l.ranks / l.tp) / accumulation;
  return o;
}

struct Result {
  std::vector<double> losses, norms;
  StateDict first, last;  ///< weights before and after; on several ranks, what one rank would write
};

StateDict values_of(const distributed::SlicedTensors& slices) {
  StateDict out;
  for (const auto& [name, p] : slices) out[name] = p.values.clone();
  return out;
}

Result run(const GptOptions& o, int steps, const train::Ranks& ranks,
           distributed::SlicedTensors* slices = nullptr) {
  GptStep gpt(o, ranks);
  Result r;
  r.first = values_of(gpt.step.model_slices());
  for (int step = 1; step <= steps; ++step) {
    const train::StepResult s =
        gpt.step(step, batch_of(step, ranks.first_row(), ranks.rows(), o.model.vocab));
    r.losses.push_back(s.loss());
    if (s.find("mtp_1_loss")) r.losses.push_back(s.at("mtp_1_loss").value());
    r.norms.push_back(s.grad_norm());
  }
  r.last = values_of(gpt.step.model_slices());
  if (slices) *slices = gpt.step.model_slices();
  return r;
}

Result run_alone(const GptOptions& o, int steps) { return run(o, steps, train::Ranks::alone(o)); }

// A rank's piece of a whole tensor.
Tensor cut(const Tensor& whole, const distributed::ShardSlice& piece, const Shape& shape) {
  const Tensor out = Tensor::empty({shape_of(piece.spec).numel()}, whole.dtype());
  const Tensor flat = whole.flatten();
  nn::for_each_run(piece.spec, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    out.narrow(0, to, count).copy_(flat.narrow(0, from, count));
  });
  return out.narrow(0, piece.begin, piece.end - piece.begin).view(shape);
}

double squares(const Tensor& t) {
  double sum = 0;
  for (const double v : test::values(t)) sum += v * v;
  return sum;
}

struct Tolerance {
  double losses;       ///< of losses and norms, relative
  double change;       ///< of each parameter's change, relative to the change
  double weights = 1;  ///< of each parameter, relative
};

// "" or the first difference beyond the tolerance. Each rank checks its own slices.
std::string difference(const Result& got, const Result& want,
                       const distributed::SlicedTensors& slices, const Tolerance& tolerance) {
  const auto apart = [](double a, double b) { return std::abs(a - b) / std::abs(b); };
  for (std::size_t i = 0; i < want.losses.size(); ++i)
    if (!(apart(got.losses.at(i), want.losses[i]) <= tolerance.losses))
      return message("loss {}: {}, not {}", i, got.losses[i], want.losses[i]);
  for (std::size_t i = 0; i < want.norms.size(); ++i)
    if (!(apart(got.norms.at(i), want.norms[i]) <= tolerance.losses))
      return message("norm {}: {}, not {}", i, got.norms[i], want.norms[i]);
  for (const auto& [name, p] : slices) {
    if (!is_compute(p.values.dtype())) continue;
    const Shape& shape = p.values.shape();
    const Tensor &first = want.first.at(name), &last = want.last.at(name);
    if (const std::string text =
            test::different_bits(got.first.at(name), cut(first, p.slice, shape));
        !text.empty())
      return message("{} starts otherwise: {}", name, text);
    // Relative to the whole parameter, because a shard may hardly change.
    const double d = std::sqrt(squares(sub(got.last.at(name), cut(last, p.slice, shape))));
    const double change = std::sqrt(squares(sub(first, last)));
    if (!(d <= tolerance.change * change && d <= tolerance.weights * std::sqrt(squares(last))))
      return message("{}: {} apart, after a change of {}", name, d, change);
  }
  return "";
}

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

// Runs a case on its ranks and compares.
void on_ranks(const Model& m, const Layout& l, const GptOptions& own, const Result& want,
              const Tolerance& tolerance) {
  test::distributed_test(static_cast<int>(l.ranks), [&](World& world) {
    CAPTURE(std::string(m.name));
    CAPTURE(std::string(l.name));
    CAPTURE(own.parallel.zero);
    CAPTURE(own.micro_batch);
    const train::Ranks ranks(world, own);
    distributed::SlicedTensors slices;
    const Result got = run(own, static_cast<int>(want.norms.size()), ranks, &slices);
    CHECK(difference(got, want, slices, tolerance) == "");
  });
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

TEST_CASE("session: with --fsdp losses, norm and gradients of the first step equal one rank") {
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

TEST_CASE("session: a rerun with --fsdp gives the same bits, in bf16 too") {
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

}  // namespace weft::examples::session_layouts_test
