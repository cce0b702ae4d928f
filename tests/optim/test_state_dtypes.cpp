// Optimizer states and weights in few bits: rounding, long runs, bytes, and a change of dtype on
// resume.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/parallel.h"
#include "weft/core/random.h"
#include "weft/optim/adamw.h"
#include "weft/optim/sgd.h"
#include "weft/tests/support.h"

namespace weft::state_dtypes_test {
namespace {

using optim::AdamW;
using optim::AdamWOptions;
using optim::MasterWeights;
using optim::Optimizer;
using optim::ParamSettings;
using optim::Rounding;
using optim::Sgd;

constexpr auto kStochastic = Rounding::stochastic;
constexpr DType kStates[] = {DType::f32, DType::bf16, DType::f16, DType::e4m3};

// A state of one element as the definition in core/kernels/rounding.h stores it.
float stored(DType dtype, float x, std::uint32_t random, bool stochastic, bool keeps) {
  if (dtype == DType::bf16) return stochastic ? stochastic_bf16(x, random) : bf16(x);
  if (dtype != DType::e4m3) return x;
  const std::uint8_t e = block_exponent(std::abs(x));
  return round_e4m3(x * inverse_block_scale(e), {stochastic, keeps}, random) * block_scale(e);
}

NamedTensors parameters(DType dtype = DType::bf16) {
  NamedTensors ps{{"w", test::random({37, 5}, 1, dtype)},
                  {"long", test::random({70'000}, 4, dtype)},
                  {"none", Tensor::zeros({0, 2}, dtype)},
                  {"b", test::random({9}, 3, dtype)}};
  for (NamedTensor& p : ps) p.tensor.set_requires_grad();
  return ps;
}

void step(Optimizer& opt, std::uint64_t number) {
  std::uint64_t seed = 1000 * number;
  for (const NamedTensor& p : opt.parameters())
    p.tensor.set_grad(test::random(p.tensor.shape(), ++seed, DType::f64).to(DType::f32));
  opt.step();
}

// "" when both have the same parameters and states, bit by bit.
std::string differences(const Optimizer& a, const Optimizer& b) {
  for (std::size_t i = 0; i < a.parameters().size(); ++i)
    if (const std::string d = test::different_bits(a.parameters()[i].tensor.detach(),
                                                   b.parameters()[i].tensor.detach());
        !d.empty())
      return a.parameters()[i].name + ": " + d;
  const StateDict want = a.state_dict(), got = b.state_dict();
  for (const auto& [name, tensor] : want)
    if (const std::string d = test::different_bits(got.at(name), tensor); !d.empty())
      return name + ": " + d;
  return "";
}

}  // namespace

TEST_CASE("state_dtypes: a scalar program gives the same bits") {
  for (const DType m_dtype : kStates)
    for (const DType v_dtype : kStates)
      for (const bool stochastic : {false, true}) {
        if (m_dtype == DType::f16 || v_dtype == DType::f16) continue;
        CAPTURE(name(m_dtype));
        CAPTURE(name(v_dtype));
        CAPTURE(stochastic);
        const AdamWOptions o{.lr = 1e-3,
                             .beta2 = 0.95,
                             .m_dtype = m_dtype,
                             .v_dtype = v_dtype,
                             .rounding = stochastic ? kStochastic : Rounding::nearest,
                             .seed = 5,
                             .master_weights = MasterWeights::none};
        const Tensor p = Tensor::full({1, 1}, 0.5, DType::bf16).set_requires_grad();
        AdamW opt({{"p", p}}, o);
        float w = 0.5f, m = 0, v = 0;
        for (std::uint64_t t = 1; t <= 20; ++t) {
          const auto g = static_cast<float>(std::sin(static_cast<double>(t)));
          p.set_grad(Tensor::full({1, 1}, static_cast<double>(g)));
          opt.step();
          const auto b1 = static_cast<float>(o.beta1), b2 = static_cast<float>(o.beta2);
          const auto power = [&](float b) {
            return static_cast<float>(1 - std::pow(static_cast<double>(b), static_cast<double>(t)));
          };
          m = b1 * m + (1 - b1) * g;
          v = b2 * v + (1 - b2) * g * g;
          float u = (m / power(b1)) / (std::sqrt(v / power(b2)) + static_cast<float>(o.eps));
          u += static_cast<float>(o.weight_decay) * w;
          w -= static_cast<float>(o.lr) * u;
          const std::uint64_t name = stream_of("p");
          const auto bits = [&](Drawn what) {
            return random_bits({o.seed, rounding_stream(name, t, what)}, 0);
          };
          m = stored(m_dtype, m, bits(Drawn::states) & 0xffff, stochastic, false);
          v = stored(v_dtype, v, bits(Drawn::states) >> 16, stochastic, true);
          w = stored(DType::bf16, w, bits(Drawn::weight) & 0xffff, stochastic, false);
          const StateDict state = opt.state_dict();
          CHECK(*state.at("p.m").data<float>() == m);
          CHECK(*state.at("p.v").data<float>() == v);
          CHECK(static_cast<float>(*p.data<bf16>()) == w);
        }
      }
}

namespace {

// The mean of the second moments of 2048 elements after 20,000 steps of N(0, 1) gradients.
double mean_v(DType dtype, Rounding rounding) {
  constexpr std::int64_t n = 2048, kPool = 1 << 18;
  static const Tensor pool = [] {
    const Tensor t = Tensor::empty({kPool}, DType::f32);
    normal_(t, {3, 1});
    return t;
  }();
  const Tensor p = Tensor::zeros({n}).set_requires_grad();
  AdamW opt({{"p", p}},
            {.lr = 1e-4, .beta2 = 0.999, .v_dtype = dtype, .rounding = rounding, .seed = 1});
  for (std::uint64_t t = 0; t < 20'000; ++t) {
    const auto at = static_cast<std::int64_t>(random_bits({4, 4, 0}, t) % (kPool - n));
    p.set_grad(pool.narrow(0, at, n));
    opt.step();
  }
  double sum = 0;
  for (const double v : test::values(opt.state_dict().at("p.v"))) sum += v;
  return sum / n;
}

void ignore(std::string_view) {}

}  // namespace

TEST_CASE("state_dtypes: 20,000 steps at beta2 0.999 keep the mean only with random rounding") {
  set_log_handler(ignore);
  const double want = mean_v(DType::f32, Rounding::nearest);
  CHECK(want == doctest::Approx(1).epsilon(0.02));
  const auto ratio = [&](DType dtype, Rounding r) { return mean_v(dtype, r) / want; };
  const auto in_bounds = [](double r) { return r > 0.95 && r < 1.05; };
  const double plain = ratio(DType::bf16, Rounding::nearest);
  CHECK_MESSAGE(!in_bounds(plain), plain);
  const double rounded = ratio(DType::bf16, kStochastic);
  CHECK_MESSAGE(in_bounds(rounded), rounded);
  const double fp8 = ratio(DType::e4m3, kStochastic);
  CHECK_MESSAGE(in_bounds(fp8), fp8);
  const double fp8_plain = ratio(DType::e4m3, Rounding::nearest);
  CHECK_MESSAGE(!in_bounds(fp8_plain), fp8_plain);
  set_log_handler(nullptr);
}

TEST_CASE("state_dtypes: any number of threads gives the same bits") {
  const AdamWOptions o{.m_dtype = DType::bf16,
                       .v_dtype = DType::e4m3,
                       .rounding = kStochastic,
                       .seed = 9,
                       .master_weights = MasterWeights::none};
  const test::RestoreThreads restore;
  AdamW one(parameters(), o), many(parameters(), o);
  for (std::uint64_t t = 1; t <= 3; ++t) {
    set_num_threads(1);
    step(one, t);
    set_num_threads(3);
    step(many, t);
  }
  CHECK(differences(one, many) == "");
}

TEST_CASE("state_dtypes: seed, name and step choose the random bits") {
  const auto run = [](const char* name, std::uint64_t seed, int steps) {
    const Tensor p = Tensor::full({64}, 1, DType::bf16).set_requires_grad();
    Sgd opt(
        {{name, p}},
        {.lr = 1e-3, .master_weights = MasterWeights::none, .rounding = kStochastic, .seed = seed});
    for (int t = 0; t < steps; ++t) {
      const NoGradGuard off;
      p.fill_(1);
      p.set_grad(Tensor::full({64}, 1, DType::bf16));
      opt.step();
    }
    return p.detach();
  };
  const Tensor want = run("p", 1, 1);
  CHECK(test::different_bits(run("p", 1, 1), want) == "");
  CHECK(test::different_bits(run("p", 2, 1), want) != "");
  CHECK(test::different_bits(run("q", 1, 1), want) != "");
  CHECK(test::different_bits(run("p", 1, 2), want) != "");
}

TEST_CASE("state_dtypes: weights without masters take small steps on average") {
  for (const bool adam : {false, true}) {
    const Tensor p = Tensor::full({4096}, 1, DType::bf16).set_requires_grad();
    const NamedTensors ps{{"p", p}};
    std::unique_ptr<Optimizer> opt;
    if (adam)
      opt = std::make_unique<AdamW>(ps, AdamWOptions{.lr = 1e-4,
                                                     .weight_decay = 0,
                                                     .rounding = kStochastic,
                                                     .master_weights = MasterWeights::none});
    else
      opt = std::make_unique<Sgd>(
          ps, optim::SgdOptions{
                  .lr = 1e-4, .master_weights = MasterWeights::none, .rounding = kStochastic});
    for (int t = 0; t < 300; ++t) {
      p.set_grad(Tensor::full({4096}, 1));
      opt->step();
    }
    double sum = 0;
    for (const double x : test::values(p)) sum += x;
    CHECK(sum / 4096 == doctest::Approx(0.97).epsilon(1e-3));
  }
}

TEST_CASE("state_dtypes: a shard gets the bits of its elements of the whole") {
  // Rows 2 and 5 of the first axis, and columns of all rows: the runs of a cut are of 32 elements.
  struct Case {
    Shape shape;
    ShardPlace place;
  };
  const Case cases[] = {
      {{2, 32}, {.period = 64, .whole_period = 256, .ends = {32, 64}, .offsets = {64, 128}}},
      {{8, 16}, {.period = 16, .whole_period = 32, .ends = {16}, .offsets = {16}}},
  };
  const AdamWOptions o{.m_dtype = DType::bf16,
                       .v_dtype = DType::bf16,
                       .rounding = kStochastic,
                       .seed = 3,
                       .master_weights = MasterWeights::none};
  for (const Case& c : cases) {
    const Tensor whole = test::random({8, 32}, 1, DType::bf16);
    const Tensor gradient = test::random({8, 32}, 2, DType::f32);
    const auto shard_of = [&](const Tensor& x) {
      const Tensor out = Tensor::empty(c.shape, x.dtype());
      for (std::int64_t i = 0; i < out.numel(); ++i)
        out.view({-1}).narrow(0, i, 1).copy_(x.view({-1}).narrow(0, whole_index(&c.place, i), 1));
      return out;
    };
    const Tensor part = shard_of(whole).set_requires_grad();
    // The second half is a slice of the shard, as a sharded optimizer has it.
    const std::int64_t half = part.numel() / 2;
    const auto slice = [&](const Tensor& x) { return x.view({-1}).narrow(0, half, half); };
    const Tensor behind = slice(part.detach()).clone().set_requires_grad();
    AdamWOptions of_part = o, of_slice = o;
    of_part.settings = {{ParamSettings{.weight_decay = 0.01, .shard = c.place}}};
    of_slice.settings = {{ParamSettings{.weight_decay = 0.01, .shard = c.place, .first = half}}};
    const Tensor all = whole.clone().set_requires_grad();
    AdamW one({{"p", all}}, o), cut({{"p", part}}, of_part), sliced({{"p", behind}}, of_slice);
    for (int t = 0; t < 5; ++t) {
      all.set_grad(gradient);
      part.set_grad(shard_of(gradient));
      behind.set_grad(slice(shard_of(gradient)).clone());
      for (Optimizer* opt : {static_cast<Optimizer*>(&one), static_cast<Optimizer*>(&cut),
                             static_cast<Optimizer*>(&sliced)})
        opt->step();
    }
    CHECK(test::different_bits(part.detach(), shard_of(all.detach())) == "");
    CHECK(test::different_bits(behind.detach(), slice(part.detach())) == "");
    for (const char* state : {"p.m", "p.v"}) {
      const Tensor want = shard_of(one.state_dict().at(state));
      CHECK(test::different_bits(cut.state_dict().at(state), want) == "");
      CHECK(test::different_bits(sliced.state_dict().at(state), slice(want).clone()) == "");
    }
  }
}

TEST_CASE("state_dtypes: a state is exported as f32 and resumes in any dtype") {
  for (const DType before : kStates)
    for (const DType after : kStates) {
      CAPTURE(name(before));
      CAPTURE(name(after));
      const auto make = [](DType dtype) {
        return std::make_unique<AdamW>(
            parameters(DType::f32),
            AdamWOptions{
                .beta2 = 0.95, .m_dtype = dtype, .v_dtype = dtype, .rounding = kStochastic});
      };
      const auto old = make(before), fresh = make(after);
      for (std::uint64_t t = 1; t <= 3; ++t) step(*old, t);
      const StateDict saved = old->state_dict();
      CHECK(saved.at("w.m").dtype() == DType::f32);
      {
        const NoGradGuard off;
        for (std::size_t i = 0; i < old->parameters().size(); ++i)
          fresh->parameters()[i].tensor.copy_(old->parameters()[i].tensor);
      }
      fresh->load_state_dict(saved);
      if (before == after || after == DType::f32) {
        CHECK(differences(*old, *fresh) == "");
        if (before == after) {
          for (Optimizer* opt :
               {static_cast<Optimizer*>(old.get()), static_cast<Optimizer*>(fresh.get())})
            for (std::uint64_t t = 4; t <= 5; ++t) step(*opt, t);
          CHECK(differences(*old, *fresh) == "");
        }
        continue;
      }
      // Numbers change by half a step of the format, a second moment of an f8 block up to its
      // least.
      const StateDict loaded = fresh->state_dict();
      const double step = after == DType::e4m3 ? 0x1p-4 : 0x1p-8;
      for (const char* state : {"w.m", "w.v", "long.v"}) {
        const std::vector<double> want = test::values(saved.at(state)),
                                  got = test::values(loaded.at(state));
        for (std::size_t i = 0; i < want.size(); ++i)
          if (std::abs(got[i] - want[i]) > step * std::abs(want[i]) + 1e-5)
            FAIL(state, " ", i, " is ", got[i], " and was ", want[i]);
      }
    }
}

TEST_CASE("state_dtypes: bytes per parameter with weight and f32 gradient") {
  constexpr std::int64_t n = 1 << 16;  // no rounding to size classes
  const auto bytes = [&](MasterWeights form, DType m, DType v) {
    const std::int64_t before = memory_stats().live_bytes;
    const Tensor w = Tensor::ones({256, 256}, DType::bf16).set_requires_grad();
    w.set_main_grad(Tensor::zeros({256, 256}));
    const AdamW opt({{"w", w}}, {.beta2 = 0.95,
                                 .m_dtype = m,
                                 .v_dtype = v,
                                 .rounding = kStochastic,
                                 .master_weights = form});
    return static_cast<double>(memory_stats().live_bytes - before) / n;
  };
  CHECK(bytes(MasterWeights::f32, DType::f32, DType::f32) == 18);
  CHECK(bytes(MasterWeights::remainder, DType::f32, DType::f32) == 16);
  CHECK(bytes(MasterWeights::remainder, DType::bf16, DType::f32) == 14);
  CHECK(bytes(MasterWeights::remainder, DType::bf16, DType::bf16) == 12);
  CHECK(bytes(MasterWeights::none, DType::bf16, DType::bf16) == 10);
  CHECK(bytes(MasterWeights::none, DType::e4m3, DType::e4m3) == 8 + 2.0 / kScaleBlock);
}

}  // namespace weft::state_dtypes_test
