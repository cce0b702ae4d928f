#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "weft/core/kernels/optimizer.h"
#include "weft/core/kernels/remainder.h"
#include "weft/core/parallel.h"
#include "weft/tests/simd_tables.h"
#include "weft/tests/support.h"

namespace weft::optimizer_test {
namespace {

// Pseudo-random numbers that depend only on i.
float noise(std::int64_t i, int stream) {
  return static_cast<float>(std::sin(12.9898 * static_cast<double>(i + 1) + 78.233 * stream));
}

// One parameter with everything a step needs, in the given dtypes.
struct Problem {
  Tensor p, g, m, v, m_scale, v_scale;

  Problem(std::int64_t n, DType param, DType grad, DType m_type, DType v_type)
      : p(Tensor::empty({n}, param)),
        g(Tensor::empty({n}, grad)),
        m(Tensor::zeros({n}, m_type)),
        v(Tensor::zeros({n}, v_type)),
        m_scale(Tensor::zeros({1})),
        v_scale(Tensor::zeros({1})) {
    fill(p, 1);
    fill(g, 2);
  }
  static void fill(const Tensor& t, int stream, float factor = 1) {
    for (std::int64_t i = 0; i < t.numel(); ++i) set(t, i, factor * noise(i, stream));
  }
  static void set(const Tensor& t, std::int64_t i, double value) {
    dispatch_all(t.dtype(), [&]<class T>() { t.data<T>()[i] = T(static_cast<float>(value)); });
  }
  AdamSlot slot(double lr = 1e-2, double weight_decay = 0.1) const {
    AdamSlot s;
    s.param = p.raw();
    s.grad = g.raw();
    s.n = p.numel();
    s.param_dtype = p.dtype();
    s.grad_dtype = g.dtype();
    s.lr_scale = lr;  // for a learning rate of 1
    s.weight_decay = weight_decay;
    s.m = m.raw();
    s.v = v.raw();
    s.m_dtype = m.dtype();
    s.v_dtype = v.dtype();
    s.m_scale = m_scale.data<float>();
    s.v_scale = v_scale.data<float>();
    return s;
  }
};

void adam(const std::vector<AdamSlot>& slots, const AdamStep& step) {
  const auto count = static_cast<std::int64_t>(slots.size());
  const Tensor scratch = Tensor::empty({2 * optimizer_chunks(slots.data(), count)});
  cpu::adam_step(scratch, slots.data(), count, step);
}

AdamStep step_at(int t, double beta2 = 0.999) {
  AdamStep s;
  s.beta2 = beta2;
  s.now = {1, 1 - std::pow(s.beta1, t), 1 - std::pow(beta2, t)};
  return s;
}

double at(const Tensor& t, std::int64_t i) {
  std::vector<double> all(static_cast<std::size_t>(t.numel()));
  t.copy_to(all);
  return all[static_cast<std::size_t>(i)];
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.raw(), b.raw(), static_cast<std::size_t>(a.numel()) * size_of(a.dtype())) ==
         0;
}

constexpr std::int64_t kUneven = kOptimizerChunk + 1234;  // two chunks, and a tail in both loops

}  // namespace

// Three steps from p = 0.5 with lr 1e-3, weight decay 0.01 and gradients 0.1, -0.2, 0.05, computed
// by a scalar program with every f32 operation rounded.
TEST_CASE("adam_step: golden values of AdamW bit by bit") {
  const float gradients[] = {0.1f, -0.2f, 0.05f};
  const std::uint32_t f32_states[] = {0x3eff7c46, 0x3effab9b, 0x3effbcde};
  const float f32_m[] = {0.0100000026f, -0.0110000027f, -0.00490000052f};
  const float f32_v[] = {9.99987151e-06f, 4.99893576e-05f, 5.24393363e-05f};
  const float bf16_p[] = {0.498995006f, 0.499355763f, 0.499487013f};
  const float bf16_m[] = {0.0100097656f, -0.0109863281f, -0.0048828125f};
  const float bf16_v[] = {1.00135803e-05f, 5.00679016e-05f, 5.24520874e-05f};
  Problem wide(1, DType::f32, DType::f32, DType::f32, DType::f32);
  Problem narrow(1, DType::f32, DType::f32, DType::bf16, DType::bf16);
  Problem::set(wide.p, 0, 0.5);
  Problem::set(narrow.p, 0, 0.5);
  for (int t = 1; t <= 3; ++t) {
    CAPTURE(t);
    Problem::set(wide.g, 0, gradients[t - 1]);
    Problem::set(narrow.g, 0, gradients[t - 1]);
    adam({wide.slot(1e-3, 0.01)}, step_at(t));
    // The program's bf16 run computed its bias corrections with powf.
    AdamStep s = step_at(t);
    s.now.bias_correction1 = 1.0f - std::pow(0.9f, static_cast<float>(t));
    s.now.bias_correction2 = 1.0f - std::pow(0.999f, static_cast<float>(t));
    adam({narrow.slot(1e-3, 0.01)}, s);
    CHECK(std::bit_cast<std::uint32_t>(wide.p.data<float>()[0]) == f32_states[t - 1]);
    CHECK(wide.m.data<float>()[0] == f32_m[t - 1]);
    CHECK(wide.v.data<float>()[0] == f32_v[t - 1]);
    CHECK(narrow.p.data<float>()[0] == bf16_p[t - 1]);
    CHECK(at(narrow.m, 0) == bf16_m[t - 1]);
    CHECK(at(narrow.v, 0) == bf16_v[t - 1]);
  }
}

TEST_CASE("adam_step: f32 and low-precision states follow the f64 update") {
  struct Case {
    DType param, grad, m, v;
    double tolerance;
  };
  for (const bool decoupled : {true, false})
    for (const Case& c : {Case{DType::f32, DType::f32, DType::f32, DType::f32, 1e-5},
                          Case{DType::f32, DType::bf16, DType::f32, DType::f32, 1e-5},
                          Case{DType::f32, DType::f32, DType::bf16, DType::f32, 2e-3},
                          Case{DType::f32, DType::f32, DType::f16, DType::f16, 2e-3},
                          Case{DType::f32, DType::f32, DType::f16, DType::bf16, 4e-3},
                          Case{DType::bf16, DType::bf16, DType::f32, DType::f32, 2e-2}}) {
      CAPTURE(std::string(name(c.param)));
      CAPTURE(std::string(name(c.m)));
      Problem low(kUneven, c.param, c.grad, c.m, c.v);
      Problem exact(kUneven, DType::f64, DType::f64, DType::f64, DType::f64);
      low.p.copy_(exact.p);
      exact.p.copy_(low.p);
      for (int t = 1; t <= 4; ++t) {
        Problem::fill(low.g, t);
        exact.g.copy_(low.g);
        AdamStep s = step_at(t, 0.95);
        s.decoupled = decoupled;
        adam({low.slot()}, s);
        adam({exact.slot()}, s);
      }
      CHECK(test::mismatch(low.p, exact.p, c.tolerance) == "");
      CHECK(test::mismatch(low.p, Problem(kUneven, c.param, c.grad, c.m, c.v).p, 1e-2) != "");
    }
}

TEST_CASE("adam_step: f16 states use half of the f16 range and a zero state stays zero") {
  Problem one(100, DType::f32, DType::f32, DType::f16, DType::f16);
  adam({one.slot()}, step_at(1));
  double largest = 0;
  for (std::int64_t i = 0; i < 100; ++i) largest = std::max(largest, std::abs(at(one.m, i)));
  CHECK(largest == 32752);
  // The scale belongs to the moments just stored: (1 - beta1) max |g|.
  double top = 0;
  for (std::int64_t i = 0; i < 100; ++i) top = std::max(top, std::abs(at(one.g, i)));
  CHECK(std::abs(at(one.m_scale, 0) * 32752 - 0.1 * top) < 1e-7);

  Problem idle(100, DType::f32, DType::f32, DType::f16, DType::f16);
  idle.g.zero_();
  adam({idle.slot(1e-2, 0)}, step_at(1));
  CHECK(test::mismatch(idle.m, Tensor::zeros({100}), 0) == "");
  CHECK(at(idle.m_scale, 0) == 0);
}

TEST_CASE("adam_step: threads, instruction set and other parameters change no bit") {
  const test::RestoreKernels kernels_of_process;
  const test::RestoreThreads restore;
  for (const DType state : {DType::f32, DType::bf16, DType::f16}) {
    const auto run = [&](const char* isa, int n, bool alone) {
      set_simd(isa);
      set_num_threads(n);
      Problem big(kUneven, DType::f32, DType::f32, state, state);
      Problem none(0, DType::f32, DType::f32, state, state);
      Problem small(7, DType::bf16, DType::f32, state, state);
      for (int t = 1; t <= 2; ++t)
        adam(alone ? std::vector{big.slot()}
                   : std::vector{none.slot(), small.slot(), big.slot(), none.slot()},
             step_at(t));
      return big;
    };
    const Problem want = run("scalar", 1, true);
    for (const SimdTable* table : test::simd_tables()) {
      const Problem got = run(table->name, 3, false);
      CHECK(same_bytes(got.p, want.p));
      CHECK(same_bytes(got.m, want.m));
      CHECK(same_bytes(got.v, want.v));
    }
  }
}

TEST_CASE("adam_step: grad_scale multiplies and a non-finite one leaves everything unchanged") {
  Problem a(50, DType::f32, DType::f32, DType::f32, DType::f32), b = a;
  b.p = a.p.clone();
  b.m = a.m.clone();
  b.v = a.v.clone();
  b.g = Tensor::empty({50});
  Problem::fill(b.g, 2, 0.5f);
  const double half = 0.5, bad = NAN;
  AdamStep s = step_at(1);
  adam({b.slot()}, s);
  s.grad_scale = &half;
  adam({a.slot()}, s);
  CHECK(same_bytes(a.p, b.p));
  s.grad_scale = &bad;
  adam({a.slot()}, s);
  CHECK(same_bytes(a.p, b.p));
  CHECK(same_bytes(a.v, b.v));
}

TEST_CASE("adam_step: the bf16 copy is the new f32 parameter rounded") {
  Problem a(40, DType::f32, DType::bf16, DType::f32, DType::f32);
  const Tensor copy = Tensor::zeros({40}, DType::bf16);
  AdamSlot slot = a.slot();
  slot.half_copy = copy.raw();
  adam({slot}, step_at(1));
  for (int i = 0; i < 40; ++i) CHECK(copy.data<bf16>()[i].bits == bf16(a.p.data<float>()[i]).bits);
}

TEST_CASE("adam_step: a bf16 parameter with its remainder equals the f32 parameter") {
  // Golden values: the halves of 0.5 and the results of the three steps above.
  const float gradients[] = {0.1f, -0.2f, 0.05f};
  const std::uint16_t halves[] = {0x3eff, 0x3f00, 0x3f00};
  const std::int16_t remainders[] = {31'814, -21'605, -17'186};
  Problem one(1, DType::bf16, DType::f32, DType::f32, DType::f32);
  Problem::set(one.p, 0, 0.5);
  std::int16_t remainder = 0;
  for (int t = 1; t <= 3; ++t) {
    CAPTURE(t);
    Problem::set(one.g, 0, gradients[t - 1]);
    AdamSlot slot = one.slot(1e-3, 0.01);
    slot.remainder = &remainder;
    adam({slot}, step_at(t));
    CHECK(one.p.data<bf16>()[0].bits == halves[t - 1]);
    CHECK(remainder == remainders[t - 1]);
  }
  // Then two chunks of them next to the f32 update, with every instruction set.
  const test::RestoreKernels kernels_of_process;
  for (const DType state : {DType::f32, DType::bf16, DType::f16})
    for (const SimdTable* table : test::simd_tables()) {
      set_simd(table->name);
      Problem whole(kUneven, DType::f32, DType::bf16, state, state);
      Problem split(kUneven, DType::bf16, DType::bf16, state, state);
      std::vector<std::int16_t> rest(static_cast<std::size_t>(kUneven));
      for (std::int64_t i = 0; i < kUneven; ++i) {
        const SplitFloat s = split_float(whole.p.data<float>()[i]);
        split.p.data<bf16>()[i] = s.upper;
        rest[static_cast<std::size_t>(i)] = s.remainder;
      }
      for (int t = 1; t <= 3; ++t) {
        AdamSlot slot = split.slot();
        slot.remainder = rest.data();
        adam({slot}, step_at(t, 0.95));
        adam({whole.slot()}, step_at(t, 0.95));
      }
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < kUneven; ++i)
        wrong += std::bit_cast<std::uint32_t>(
                     merge_float(split.p.data<bf16>()[i], rest[static_cast<std::size_t>(i)])) !=
                 std::bit_cast<std::uint32_t>(whole.p.data<float>()[i]);
      CHECK(wrong == 0);
      CHECK(same_bytes(split.m, whole.m));
      CHECK(same_bytes(split.v, whole.v));
    }
}

TEST_CASE("sgd_step: momentum, Nesterov and decay follow their formulas") {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const bool nesterov : {false, true})
      for (const double momentum : {0.0, 0.9}) {
        const DType state = type == DType::f64 ? DType::f64 : DType::f32;
        Problem a(1000, type, type, state, state);
        std::vector<double> p(1000), buffer(1000);
        a.p.copy_to(p);
        for (int t = 1; t <= 3; ++t) {
          Problem::fill(a.g, t);
          SgdSlot slot;
          static_cast<ParamSlot&>(slot) = a.slot(0.05, 0.02);
          slot.momentum = momentum > 0 ? a.m.raw() : nullptr;
          cpu::sgd_step(a.p, &slot, 1, {momentum, nesterov, {.lr = 1}});
          for (std::size_t i = 0; i < 1000; ++i) {
            const double g = noise(static_cast<std::int64_t>(i), t) + 0.02 * p[i];
            buffer[i] = momentum * buffer[i] + g;
            p[i] -= 0.05 * (nesterov ? g + momentum * buffer[i] : buffer[i]);
          }
        }
        const double tolerance = type == DType::f64 ? 1e-7 : type == DType::f32 ? 1e-6 : 2e-2;
        CHECK(test::mismatch(a.p, Tensor::from<double>(p, {1000}), tolerance) == "");
      }
}

TEST_CASE("grad_squares: sums per slot and in total for any number of threads") {
  const test::RestoreThreads restore;
  const Problem a(kUneven, DType::f32, DType::f32, DType::f32, DType::f32);
  const Problem b(33, DType::f32, DType::bf16, DType::f32, DType::f32);
  const Problem c(5, DType::f64, DType::f64, DType::f64, DType::f64);
  const GradSlot slots[] = {{a.g.raw(), a.g.numel(), DType::f32},
                            {nullptr, 0, DType::f32},
                            {b.g.raw(), 33, DType::bf16},
                            {c.g.raw(), 5, DType::f64}};
  const Tensor partials = Tensor::empty({optimizer_chunks(slots, 4)}, DType::f64);
  const Tensor sums = Tensor::empty({5}, DType::f64), again = Tensor::empty({5}, DType::f64);
  set_num_threads(1);
  cpu::grad_squares(partials, slots, 4, sums);
  set_num_threads(3);
  cpu::grad_squares(partials, slots, 4, again);
  CHECK(same_bytes(sums, again));
  double total = 0;
  int k = 0;
  for (const Tensor& g : {a.g, Tensor::zeros({0}), b.g, c.g}) {
    std::vector<double> x(static_cast<std::size_t>(g.numel()));
    g.copy_to(x);
    double sum = 0;
    for (const double v : x) sum += v * v;
    CHECK(at(sums, k++) == doctest::Approx(sum).epsilon(1e-12));
    total += sum;
  }
  CHECK(at(sums, 4) == doctest::Approx(total).epsilon(1e-12));

  b.g.data<bf16>()[7] = bf16(NAN);
  cpu::grad_squares(partials, slots, 4, sums);
  CHECK(std::isfinite(at(sums, 0)));
  CHECK(std::isnan(at(sums, 2)));
  CHECK(std::isnan(at(sums, 4)));
}

TEST_CASE("clip_scale: min(1, max_norm / norm), NaN for a norm that is not finite") {
  const Tensor scale = Tensor::empty({}, DType::f64);
  const auto clip = [&](double sum, double max_norm) {
    cpu::clip_scale(Tensor::of({1, sum}, {2}, DType::f64), max_norm, scale);
    return scale.item();
  };
  CHECK(clip(16, 8) == 1);
  CHECK(clip(16, 2) == doctest::Approx(2 / (4 + 1e-6)).epsilon(1e-12));
  CHECK(clip(16, INFINITY) == 1);
  CHECK(clip(0, 1) == 1);
  CHECK(std::isnan(clip(INFINITY, 1)));
  CHECK(std::isnan(clip(NAN, INFINITY)));
}

}  // namespace weft::optimizer_test
