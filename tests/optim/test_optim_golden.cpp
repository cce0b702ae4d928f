// AdamW bit by bit, and the limits of low-precision states.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <string>

#include "weft/optim/adamw.h"
#include "weft/tests/support.h"

namespace weft::optim_golden_test {

namespace {

struct OneParameter {
  Tensor p;
  optim::AdamW opt;

  OneParameter(double p0, const optim::AdamWOptions& o)
      : p(Tensor::of({p0}, {1, 1}).set_requires_grad()), opt({{"p", p}}, o) {}
  void step(double g) {
    p.set_grad(Tensor::of({g}, {1, 1}));
    opt.step();
  }
  float value() const { return *p.data<float>(); }
  float state(const char* name) const {
    return static_cast<float>(opt.state_dict().at(std::string("p.") + name).item());
  }
};

// g = 0.1, -0.2, 0.05 from p = 0.5. An independent scalar program computed these numbers with every
// f32 operation rounded.
constexpr optim::AdamWOptions kGolden{
    .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
constexpr double kGradients[] = {0.1, -0.2, 0.05};

int log_lines = 0;
std::string last_line;
void count_line(std::string_view line) {
  ++log_lines;
  last_line = line;
}

}  // namespace

TEST_CASE("adamw: golden values with f32 states") {
  OneParameter one(0.5, kGolden);
  const std::uint32_t p[] = {0x3eff7c46, 0x3effab9b, 0x3effbcde};
  const float m[] = {0.0100000026f, -0.0110000027f, -0.00490000052f};
  const float v[] = {9.99987151e-06f, 4.99893576e-05f, 5.24393363e-05f};
  for (int t = 0; t < 3; ++t) {
    CAPTURE(t);
    one.step(kGradients[t]);
    CHECK(std::bit_cast<std::uint32_t>(one.value()) == p[t]);
    CHECK(one.state("m") == m[t]);
    CHECK(one.state("v") == v[t]);
  }
}

TEST_CASE("adamw: golden values with bf16 states") {
  optim::AdamWOptions o = kGolden;
  o.m_dtype = o.v_dtype = DType::bf16;
  OneParameter one(0.5, o);
  const float p[] = {0.498995006f, 0.499355763f, 0.499487013f};
  const float m[] = {0.0100097656f, -0.0109863281f, -0.0048828125f};
  const float v[] = {1.00135803e-05f, 5.00679016e-05f, 5.24520874e-05f};
  for (int t = 0; t < 3; ++t) {
    CAPTURE(t);
    one.step(kGradients[t]);
    CHECK(std::bit_cast<std::uint32_t>(one.value()) == std::bit_cast<std::uint32_t>(p[t]));
    CHECK(one.state("m") == m[t]);
    CHECK(one.state("v") == v[t]);
  }
}

TEST_CASE("adamw: f32 states follow an f64 reference over 1000 steps") {
  constexpr int kN = 37, kSteps = 1000;
  for (const bool decoupled : {true, false}) {
    CAPTURE(decoupled);
    const optim::AdamWOptions o{
        .lr = 3e-3, .beta2 = 0.95, .weight_decay = 0.1, .decoupled = decoupled};
    const Tensor start = test::random({kN, 1}, 5, DType::f32);
    Tensor p = start.clone();
    p.set_requires_grad();
    optim::AdamW opt({{"p", p}}, o);
    double ref[kN], m[kN] = {}, v[kN] = {};
    start.copy_to(ref);
    for (int t = 1; t <= kSteps; ++t) {
      const Tensor g = test::random({kN, 1}, 100 + static_cast<std::uint64_t>(t), DType::f32);
      p.set_grad(g);
      opt.step();
      for (int i = 0; i < kN; ++i) {
        const double gi = g.data<float>()[i] + (decoupled ? 0 : o.weight_decay * ref[i]);
        m[i] = o.beta1 * m[i] + (1 - o.beta1) * gi;
        v[i] = o.beta2 * v[i] + (1 - o.beta2) * gi * gi;
        const double u = m[i] / (1 - std::pow(o.beta1, t)) /
                         (std::sqrt(v[i] / (1 - std::pow(o.beta2, t))) + o.eps);
        ref[i] -= o.lr * (u + (decoupled ? o.weight_decay * ref[i] : 0));
      }
    }
    for (int i = 0; i < kN; ++i) {
      CAPTURE(i);
      CHECK(p.data<float>()[i] == doctest::Approx(ref[i]).epsilon(2e-5));
      CHECK(std::abs(p.data<float>()[i] - start.data<float>()[i]) > 1e-2);
    }
  }
}

TEST_CASE("adamw: f64 parameters have f64 states and agree with the reference to rounding") {
  Tensor p = Tensor::of({0.5}, {1, 1}, DType::f64).set_requires_grad();
  optim::AdamW opt({{"p", p}}, kGolden);
  double ref = 0.5, m = 0, v = 0;
  for (int t = 1; t <= 3; ++t) {
    const double g = kGradients[t - 1];
    p.set_grad(Tensor::of({g}, {1, 1}, DType::f64));
    opt.step();
    m = 0.9 * m + 0.1 * g;
    v = 0.999 * v + 0.001 * g * g;
    const double u = m / (1 - std::pow(0.9, t)) / (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
    ref -= 1e-3 * (u + 0.01 * ref);
    CHECK(p.item() == doctest::Approx(ref).epsilon(1e-14));
  }
  CHECK(opt.state_dict().at("p.m").dtype() == DType::f64);
}

TEST_CASE("adamw: f16 states carry a scale so that tiny second moments survive") {
  // Here v is near 1e-10, below f16's smallest number without a scale.
  const optim::AdamWOptions half{
      .lr = 1e-3, .beta2 = 0.95, .m_dtype = DType::f16, .v_dtype = DType::f16};
  const optim::AdamWOptions full{.lr = 1e-3, .beta2 = 0.95};
  OneParameter a(0.5, half), b(0.5, full);
  for (int t = 0; t < 50; ++t) {
    const double g = 1e-5 * (1 + 0.3 * std::sin(t));
    a.step(g);
    b.step(g);
  }
  CHECK(a.value() == doctest::Approx(b.value()).epsilon(1e-4));
  CHECK(std::abs(b.value() - 0.5f) > 0.02f);
  CHECK(a.state("v") == doctest::Approx(b.state("v")).epsilon(0.02));
  CHECK(a.state("v") > 1e-11f);
}

TEST_CASE("adamw: a second moment above 0 stays above 0 in f16 and e4m3") {
  // Else m / eps: the second weight would move by 15.
  const auto moved = [](DType dtype, bool loads) {
    const optim::AdamWOptions f32{.lr = 1e-3, .beta2 = 0.95, .weight_decay = 0};
    optim::AdamWOptions o = f32;
    o.m_dtype = o.v_dtype = dtype;
    const Tensor w = Tensor::ones({3}).set_requires_grad();
    const NamedTensors ps{{"w", w}};
    optim::AdamW narrow(ps, o), wide(ps, f32);
    double most = 0;
    for (int t = 0; t < 40; ++t) {
      w.set_grad(Tensor::of({100, t == 0 ? 1e-4 : 0, 1e-4}));
      if (loads) {
        wide.step();
        narrow.load_state_dict(wide.state_dict());
      }
      const Tensor before = w.detach().clone();
      narrow.step();
      most = std::max(most, (w.detach() - before).abs().max().item());
    }
    return most;
  };
  for (const DType dtype : {DType::f32, DType::f16, DType::e4m3})
    for (const bool loads : {false, true}) {
      CAPTURE(message("{}, loads: {}", dtype, loads));
      CHECK(moved(dtype, loads) < 2e-3);
    }
}

TEST_CASE("adamw: bf16 second moments cannot decay with beta2 0.999") {
  // (1 - beta2) is below half a unit in the last place of bf16: v stays far from the mean of g^2.
  const auto second_moment = [](DType dtype, double beta2) {
    OneParameter one(0, {.lr = 0, .beta2 = beta2, .v_dtype = dtype});
    for (int t = 0; t < 5000; ++t) one.step(1);
    return one.state("v");
  };
  CHECK(second_moment(DType::f32, 0.999) == doctest::Approx(0.9933).epsilon(1e-3));
  CHECK(second_moment(DType::bf16, 0.999) == 0.25f);
  CHECK(second_moment(DType::bf16, 0.95) == doctest::Approx(1).epsilon(0.05));
}

TEST_CASE("adamw: warns about the bf16 hazard and only then") {
  set_log_handler(count_line);
  const Tensor p = Tensor::zeros({1, 1}).set_requires_grad();
  const auto lines_for = [&](DType v, double beta2) {
    log_lines = 0;
    const optim::AdamW opt({{"p", p}}, {.beta2 = beta2, .v_dtype = v});
    return log_lines;
  };
  CHECK(lines_for(DType::bf16, 0.999) == 1);
  CHECK(last_line ==
        "adamw: bf16 v cannot decay with beta2 0.999: its steps are below bf16 precision, so it "
        "sticks too high; use stochastic rounding, beta2 <= 0.99 or v_dtype f32");
  CHECK(lines_for(DType::e4m3, 0.95) == 1);
  CHECK(last_line ==
        "adamw: e4m3 v cannot follow g^2 with nearest rounding: its steps are below e4m3 "
        "precision; use stochastic rounding or v_dtype f32");
  CHECK(lines_for(DType::bf16, 0.99) == 0);
  CHECK(lines_for(DType::f32, 0.999) == 0);
  CHECK(lines_for(DType::f16, 0.999) == 0);
  set_log_handler(nullptr);
}

}  // namespace weft::optim_golden_test
