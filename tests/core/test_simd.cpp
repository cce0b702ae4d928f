#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "weft/core/cpu/simd.h"
#include "weft/tests/simd_tables.h"
#include "weft/tests/support.h"

namespace weft::simd_test {
namespace {

using test::simd_tables;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kSmallestNormal = std::numeric_limits<float>::min();

using Map = RowKernels<float>::Map;

std::vector<float> linear(double low, double high, int n = 20011) {
  std::vector<float> x;
  for (int i = 0; i < n; ++i) x.push_back(static_cast<float>(low + (high - low) * i / (n - 1)));
  return x;
}

std::vector<float> geometric(double low, double high, int n = 20011) {
  std::vector<float> x;
  for (int i = 0; i < n; ++i)
    x.push_back(static_cast<float>(low * std::pow(high / low, static_cast<double>(i) / (n - 1))));
  return x;
}

// The largest |got - want| / max(|want|, floor).
double worst(Map* f, const std::vector<float>& x, double (*want)(double), double floor) {
  std::vector<float> y(x.size());
  f(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  double most = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double w = want(x[i]);
    if (static_cast<float>(w) == y[i]) continue;
    const double error = std::abs(y[i] - w) / std::max(std::abs(w), floor);
    if (!(error <= most)) most = std::isnan(error) ? INFINITY : error;
  }
  return most;
}

float at(Map* f, float x) {
  float y = 0;
  f(&x, &y, 1);
  return y;
}

double exp64(double x) { return std::exp(x); }
double log64(double x) { return std::log(x); }
double tanh64(double x) { return std::tanh(x); }
double erf64(double x) { return std::erf(x); }
double sigmoid64(double x) { return 1 / (1 + std::exp(-x)); }
double silu64(double x) { return x / (1 + std::exp(-x)); }
double sqrt_softplus64(double x) { return std::sqrt(std::log1p(std::exp(x))); }
double gelu_tanh64(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double gelu_erf64(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }

// Every special value, then ordinary ones; 77 in all, so that there is a tail.
std::vector<float> difficult(float scale) {
  std::vector<float> x = {0,     -0.0f,  kInf,  -kInf, kNan,   1e-45f,  -1e-45f, 1e-38f, -1e-38f,
                          3e38f, -3e38f, 88.7f, 88.8f, -87.3f, -103.9f, -104.1f, 0.625f, 1};
  for (int i = 0; x.size() < 77; ++i)
    x.push_back(scale * static_cast<float>(std::sin(1.7 * i + 1)));
  return x;
}

template <class T>
std::vector<T> as(const std::vector<float>& x) {
  std::vector<T> y;
  for (const float v : x) y.push_back(T(v));
  return y;
}

// NaN equals NaN: IEEE leaves its sign and payload open.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(static_cast<float>(a[i])) && std::isnan(static_cast<float>(b[i]))) continue;
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return false;
  }
  return true;
}

// The outputs of a norm for one row, forward and then backward.
template <class T>
struct NormResult {
  std::vector<T> sum, y, dx;
  std::vector<float> dweight, dbias;
  float mean = 0, rstd = 0;
};

template <class T>
NormResult<T> norm_row(typename RowKernels<T>::NormFwd* forward,
                       typename RowKernels<T>::NormBwd* backward, float offset,
                       const std::vector<T>& x, const std::vector<T>& dy) {
  const auto n = static_cast<std::int64_t>(x.size());
  NormResult<T> r{x, x, x, std::vector<float>(x.size(), 0.5f), std::vector<float>(x.size())};
  forward(x.data(), dy.data(), x.data(), offset, dy.data(), 1e-5f, r.sum.data(), r.y.data(), n,
          &r.mean, &r.rstd);
  backward(r.sum.data(), dy.data(), x.data(), offset, dy.data(), r.mean, r.rstd, r.dx.data(),
           r.dweight.data(), r.dbias.data(), n);
  return r;
}

template <class T>
void check_same_norms(const RowKernels<T>& a, const RowKernels<T>& b, const std::vector<T>& x,
                      const std::vector<T>& long_dy) {
  const std::vector<T> dy(long_dy.begin(), long_dy.begin() + static_cast<std::ptrdiff_t>(x.size()));
  const auto all_of = [&](const RowKernels<T>& k) {
    return std::array{norm_row(k.layer_norm, k.layer_norm_bwd, -0.0f, x, dy),
                      norm_row(k.rms_norm, k.rms_norm_bwd, -0.0f, x, dy),
                      norm_row(k.rms_norm, k.rms_norm_bwd, 1, x, dy)};
  };
  const auto ones = all_of(a), twos = all_of(b);
  for (std::size_t i = 0; i < ones.size(); ++i) {
    const auto &one = ones[i], &two = twos[i];
    CHECK(same_bits(one.sum, two.sum));
    CHECK(same_bits(one.y, two.y));
    CHECK(same_bits(one.dx, two.dx));
    CHECK(same_bits(one.dweight, two.dweight));
    CHECK(same_bits(one.dbias, two.dbias));
    CHECK(one.mean == two.mean);
    CHECK(one.rstd == two.rstd);
  }
}

// The gradient and the activation at once have the bits of the two kernels, also in place.
template <class T, class Map, class Bwd, class Both>
void check_bwd_and_y(const RowKernels<T>& k, Map RowKernels<T>::*map, Bwd RowKernels<T>::*bwd,
                     Both RowKernels<T>::*both, const std::vector<T>& x, const std::vector<T>& dy,
                     std::int64_t n) {
  std::vector<T> y = x, dx = dy, act = x, grad = dy;
  (k.*map)(x.data(), y.data(), n);
  (k.*bwd)(x.data(), dy.data(), dx.data(), n);
  (k.*both)(act.data(), grad.data(), grad.data(), act.data(), n);
  CHECK(same_bits(y, act));
  CHECK(same_bits(dx, grad));
}

template <class T>
void check_same_bits(const RowKernels<T>& a, const RowKernels<T>& b) {
  using K = RowKernels<T>;
  for (const float scale : {0.1f, 3.0f, 40.0f}) {
    std::vector<T> x = as<T>(difficult(scale)), dy = as<T>(linear(-2, 3, 77)), y1 = x, y2 = x;
    for (const std::int64_t n : {77, 64, 16, 15, 1}) {
      CAPTURE(n);
      int index = 0;
      for (auto f : {&K::exp, &K::log, &K::tanh, &K::erf, &K::sigmoid, &K::gelu_tanh, &K::gelu_erf,
                     &K::silu, &K::sqrt_softplus}) {
        (a.*f)(x.data(), y1.data(), n);
        (b.*f)(x.data(), y2.data(), n);
        INFO("map ", index++);
        CHECK(same_bits(y1, y2));
      }
      for (auto f :
           {&K::tanh_bwd, &K::sigmoid_bwd, &K::gelu_tanh_bwd, &K::gelu_erf_bwd, &K::silu_bwd}) {
        (a.*f)(x.data(), dy.data(), y1.data(), n);
        (b.*f)(x.data(), dy.data(), y2.data(), n);
        INFO("map_bwd ", index++);
        CHECK(same_bits(y1, y2));
      }
      for (const RowKernels<T>* k : {&a, &b}) {
        check_bwd_and_y(*k, &K::gelu_tanh, &K::gelu_tanh_bwd, &K::gelu_tanh_bwd_and_y, x, dy, n);
        check_bwd_and_y(*k, &K::gelu_erf, &K::gelu_erf_bwd, &K::gelu_erf_bwd_and_y, x, dy, n);
      }
    }
    // Rows hold only ordinary values, because one NaN makes the whole row NaN.
    x.erase(x.begin(), x.begin() + 18);
    const auto n = static_cast<std::int64_t>(x.size());
    for (auto f : {&K::softmax, &K::log_softmax}) {
      (a.*f)(x.data(), y1.data(), n);
      (b.*f)(x.data(), y2.data(), n);
      CHECK(same_bits(y1, y2));
    }
    for (auto f : {&K::softmax_bwd, &K::log_softmax_bwd}) {
      (a.*f)(x.data(), dy.data(), y1.data(), n);
      (b.*f)(x.data(), dy.data(), y2.data(), n);
      CHECK(same_bits(y1, y2));
    }
    check_same_norms(a, b, x, dy);
    std::vector<T> z1 = x, z2 = x;
    a.swiglu(x.data(), dy.data(), y1.data(), n);
    b.swiglu(x.data(), dy.data(), y2.data(), n);
    CHECK(same_bits(y1, y2));
    a.swiglu_bwd(x.data(), dy.data(), x.data(), y1.data(), z1.data(), n);
    b.swiglu_bwd(x.data(), dy.data(), x.data(), y2.data(), z2.data(), n);
    CHECK(same_bits(y1, y2));
    CHECK(same_bits(z1, z2));
    // With up and dy of 1: the bits of silu's gradient and of silu.
    const std::vector<T> ones(x.size(), T(1.0f));
    b.swiglu_bwd(x.data(), ones.data(), ones.data(), y2.data(), z2.data(), n);
    b.silu_bwd(x.data(), ones.data(), y1.data(), n);
    CHECK(same_bits(y1, y2));
    b.silu(x.data(), z1.data(), n);
    CHECK(same_bits(z1, z2));
  }
}

}  // namespace

TEST_CASE("simd: elementary functions agree with the f64 library") {
  for (const SimdTable* table : simd_tables()) {
    CAPTURE(std::string(table->name));
    const RowKernels<float>& k = table->f32;
    CHECK(worst(k.exp, linear(-87, 88.72), exp64, kSmallestNormal) < 2e-7);
    // Subnormal results: their spacing is 2^-149, 1.2e-7 of the smallest normal number.
    CHECK(worst(k.exp, linear(-105, -87), exp64, kSmallestNormal) < 2e-7);
    CHECK(worst(k.log, geometric(1e-45, 3e38), log64, 0) < 2e-7);
    CHECK(worst(k.log, linear(0.5, 2), log64, 0) < 2e-7);
    CHECK(worst(k.tanh, linear(-12, 12), tanh64, 0) < 3e-7);
    CHECK(worst(k.tanh, geometric(1e-37, 1), tanh64, 0) < 3e-7);
    CHECK(worst(k.erf, linear(-6, 6), erf64, 0) < 3e-7);
    CHECK(worst(k.erf, geometric(1e-37, 1), erf64, 0) < 3e-7);
    CHECK(worst(k.sigmoid, linear(-80, 80), sigmoid64, 0) < 4e-7);
    CHECK(worst(k.silu, linear(-80, 80), silu64, 1e-30) < 4e-7);
    CHECK(worst(k.sqrt_softplus, linear(-160, 80), sqrt_softplus64, 0) < 4e-7);
    CHECK(worst(k.sqrt_softplus, linear(-21, 21), sqrt_softplus64, 0) < 4e-7);
    // exp multiplies the rounding error of an argument of -13 into its result.
    CHECK(worst(k.gelu_tanh, linear(-5, 30), gelu_tanh64, 1e-4) < 3e-6);
    CHECK(worst(k.gelu_erf, linear(-5, 30), gelu_erf64, 1e-4) < 3e-6);
  }
}

TEST_CASE("simd: special values") {
  for (const SimdTable* table : simd_tables()) {
    CAPTURE(std::string(table->name));
    const RowKernels<float>& k = table->f32;
    for (Map* f :
         {k.exp, k.log, k.tanh, k.erf, k.sigmoid, k.gelu_tanh, k.gelu_erf, k.silu, k.sqrt_softplus})
      CHECK(std::isnan(at(f, kNan)));
    CHECK(at(k.sqrt_softplus, kInf) == kInf);
    CHECK(at(k.sqrt_softplus, -kInf) == 0);
    CHECK(at(k.exp, 0) == 1);
    CHECK(at(k.exp, kInf) == kInf);
    CHECK(at(k.exp, 88.73f) == kInf);
    CHECK(at(k.exp, -kInf) == 0);
    CHECK(at(k.exp, -104) == 0);
    CHECK(at(k.log, 1) == 0);
    CHECK(at(k.log, 0) == -kInf);
    CHECK(at(k.log, -0.0f) == -kInf);
    CHECK(at(k.log, kInf) == kInf);
    CHECK(std::isnan(at(k.log, -1)));
    CHECK(std::isnan(at(k.log, -kInf)));
    for (Map* f : {k.tanh, k.erf}) {
      CHECK(at(f, kInf) == 1);
      CHECK(at(f, -kInf) == -1);
      CHECK(std::signbit(at(f, -0.0f)));
    }
    CHECK(at(k.sigmoid, kInf) == 1);
    CHECK(at(k.sigmoid, -kInf) == 0);
    for (Map* f : {k.gelu_tanh, k.gelu_erf, k.silu}) {
      CHECK(at(f, kInf) == kInf);
      CHECK(at(f, 1e30f) == 1e30f);
      CHECK(at(f, -1e30f) == 0);
    }
    for (auto bwd : {k.gelu_tanh_bwd, k.gelu_erf_bwd}) {
      const float x[2] = {1e30f, -1e30f}, dy[2] = {2, 2};
      float dx[2];
      bwd(x, dy, dx, 2);
      CHECK(dx[0] == 2);
      CHECK(std::abs(dx[1]) < 1e-20f);
    }
  }
}

TEST_CASE("simd: derivatives match finite differences of the f64 library") {
  struct Case {
    const char* name;
    RowKernels<float>::MapBwd* RowKernels<float>::*bwd;
    double (*f)(double);
    bool of_y;
  };
  using K = RowKernels<float>;
  for (const SimdTable* table : simd_tables())
    for (const Case& c : {Case{"tanh", &K::tanh_bwd, tanh64, true},
                          Case{"sigmoid", &K::sigmoid_bwd, sigmoid64, true},
                          Case{"gelu_tanh", &K::gelu_tanh_bwd, gelu_tanh64, false},
                          Case{"gelu_erf", &K::gelu_erf_bwd, gelu_erf64, false},
                          Case{"silu", &K::silu_bwd, silu64, false}}) {
      CAPTURE(std::string(table->name));
      CAPTURE(std::string(c.name));
      const std::vector<float> x = linear(-7, 7, 301), dy = linear(-2, 3, 301);
      std::vector<float> given = x, dx(x.size());
      if (c.of_y)
        for (float& v : given) v = static_cast<float>(c.f(v));
      (table->f32.*c.bwd)(given.data(), dy.data(), dx.data(), 301);
      double most = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double slope = (c.f(x[i] + 1e-5) - c.f(x[i] - 1e-5)) / 2e-5;
        most = std::max(most, std::abs(dx[i] - slope * dy[i]));
      }
      CHECK(most < 1e-6);
    }
}

TEST_CASE_TEMPLATE("simd: 16-bit rows are the f32 results rounded to nearest even", T, bf16, f16) {
  for (const SimdTable* table : simd_tables()) {
    CAPTURE(std::string(table->name));
    const std::vector<T> x = as<T>(difficult(3));
    std::vector<float> wide, y(x.size());
    for (const T v : x) wide.push_back(v);
    std::vector<T> got(x.size());
    table->template of<T>().tanh(x.data(), got.data(), 77);
    table->f32.tanh(wide.data(), y.data(), 77);
    CHECK(same_bits(got, as<T>(y)));
  }
}

TEST_CASE_TEMPLATE("simd: conversions are those of the type, NaN included", T, bf16, f16) {
  std::vector<T> all(65536);
  std::vector<float> values(all.size()), between;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].bits = static_cast<std::uint16_t>(i);
    values[i] = static_cast<float>(all[i]);
    // The number itself, ties with both neighbours, and what lies next to a tie.
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    for (const std::uint32_t more : {0u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u})
      between.push_back(std::bit_cast<float>(bits + more));
  }
  std::vector<T> rounded;
  for (const float v : between) rounded.push_back(T(v));
  for (const SimdTable* table : simd_tables()) {
    CAPTURE(std::string(table->name));
    const RowKernels<T>& k = table->template of<T>();
    std::vector<float> wide(all.size());
    std::vector<T> narrow(between.size());
    k.widen(all.data(), wide.data(), static_cast<std::int64_t>(all.size()) - 3);
    k.widen(all.data() + all.size() - 3, wide.data() + all.size() - 3, 3);
    k.narrow(between.data(), narrow.data(), static_cast<std::int64_t>(between.size()));
    CHECK(same_bits(wide, values));
    CHECK(same_bits(narrow, rounded));
  }
}

TEST_CASE("simd: a tail neither reads nor writes beyond the end") {
  for (const SimdTable* table : simd_tables()) {
    CAPTURE(std::string(table->name));
    for (std::int64_t n = 0; n < 40; ++n) {
      std::vector<float> x(static_cast<std::size_t>(n), 0.5f),
          y(static_cast<std::size_t>(n) + 16, 7);
      table->f32.exp(x.data(), y.data(), n);
      for (std::size_t i = static_cast<std::size_t>(n); i < y.size(); ++i) CHECK(y[i] == 7);
    }
  }
}

TEST_CASE("simd: every instruction set gives the same bits") {
  const auto found = simd_tables();
  for (std::size_t i = 1; i < found.size(); ++i) {
    CAPTURE(std::string(found[i]->name));
    check_same_bits(found[0]->f32, found[i]->f32);
    check_same_bits(found[0]->bf16_, found[i]->bf16_);
    check_same_bits(found[0]->f16_, found[i]->f16_);
  }
}

TEST_CASE("simd: the table can be chosen by name") {
  const SimdTable& best = simd();
  set_simd("scalar");
  CHECK(std::string(simd().name) == "scalar");
  set_simd(best.name);
  CHECK(&simd() == &best);
  CHECK(find_simd("mmx") == nullptr);
  CHECK(test::error_of([] { set_simd("mmx"); }) ==
        "set_simd: must be an instruction set of this CPU, got mmx");
}

TEST_CASE("simd: the largest values of each lane, found in two calls") {
  for (const SimdTable* table : simd_tables()) {
    CAPTURE(std::string(table->name));
    // Few different values, so that positions decide.
    std::vector<float> x;
    for (int i = 0; i < 75 * 16; ++i) x.push_back(static_cast<float>(i * 37 % 113 * 11 % 23) - 15);
    for (const std::size_t k : {1, 2, 9, 32}) {
      std::vector<float> values(k * 16, kTopFloor), places(k * 16);
      const auto n = static_cast<std::int64_t>(k);
      REQUIRE(table->top_of_columns(x.data(), 40, 0, n, values.data(), places.data()));
      REQUIRE(table->top_of_columns(x.data() + 40 * 16, 35, 40, n, values.data(), places.data()));
      for (std::size_t lane = 0; lane < 16; ++lane) {
        std::vector<std::size_t> want(75);
        for (std::size_t i = 0; i < 75; ++i) want[i] = i;
        std::stable_sort(want.begin(), want.end(), [&](std::size_t a, std::size_t b) {
          return x[a * 16 + lane] > x[b * 16 + lane];
        });
        for (std::size_t j = 0; j < k; ++j) {
          CHECK(places[j * 16 + lane] == static_cast<float>(want[j]));
          CHECK(values[j * 16 + lane] == x[want[j] * 16 + lane]);
        }
      }
    }
    for (const float odd : {kNan, kInf, -kInf}) {
      std::vector<float> with = x, values(16, kTopFloor), places(16);
      with[40 * 16 + 3] = odd;
      CHECK(!table->top_of_columns(with.data(), 75, 0, 1, values.data(), places.data()));
    }
  }
}

}  // namespace weft::simd_test
