#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/low_precision.h"
#include "weft/core/philox.h"

namespace weft::low_precision_test {
namespace {

// The definition of a format. `top` is the largest finite pattern without its sign.
struct Format {
  int exponent_bits, mantissa_bits;
  unsigned top;
  bool has_infinity;  // an infinite input stays infinite
  bool saturates;     // a finite input beyond the range becomes `top`
};

template <class T>
constexpr Format kFormat{};
template <>
constexpr Format kFormat<bf16>{8, 7, 0x7f7f, true, false};
template <>
constexpr Format kFormat<f16>{5, 10, 0x7bff, true, false};
template <>
constexpr Format kFormat<e4m3>{4, 3, 0x7e, false, true};
template <>
constexpr Format kFormat<e5m2>{5, 2, 0x7b, true, true};

// The finite values without sign, by bit pattern, computed in double from the definition.
std::vector<double> values(const Format& f) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  std::vector<double> out;
  for (unsigned bits = 0; bits <= f.top; ++bits) {
    const int exponent = static_cast<int>(bits >> f.mantissa_bits);
    const double fraction = std::ldexp(bits & ((1u << f.mantissa_bits) - 1), -f.mantissa_bits);
    out.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias)
                                : std::ldexp(1 + fraction, exponent - bias));
  }
  return out;
}

// The pattern that x must round to: the nearer of its two neighbours, the even one on a tie.
unsigned oracle(const Format& f, const std::vector<double>& table, float x) {
  const unsigned sign = std::signbit(x) ? 1u << (f.exponent_bits + f.mantissa_bits) : 0;
  const double a = std::abs(static_cast<double>(x));
  const unsigned infinity = f.top + 1;
  if (std::isinf(a)) return sign | (f.has_infinity ? infinity : f.top);
  const auto above =
      static_cast<unsigned>(std::lower_bound(table.begin(), table.end(), a) - table.begin());
  if (above < table.size() && table[above] == a) return sign | above;
  const unsigned below = above - 1;
  // Above the range the next value is the one that another exponent would give.
  const double next = above < table.size() ? table[above] : 2 * table.back() - table[f.top - 1];
  const double down = a - table[below], up = next - a;
  const unsigned nearest = down < up ? below : up < down ? above : below + (below & 1);
  return sign | (nearest > f.top ? (f.saturates ? f.top : infinity) : nearest);
}

// "" or the first value that rounds wrongly.
template <class T>
std::string first_wrong(const std::vector<float>& xs) {
  const std::vector<double> table = values(kFormat<T>);
  for (const float x : xs) {
    const unsigned want = oracle(kFormat<T>, table, x), got = T(x).bits;
    if (got != want) return message("{} became {}, not {}", static_cast<double>(x), got, want);
  }
  return "";
}

template <class T>
unsigned patterns() {
  return 1u << (8 * sizeof(T));
}

template <class T>
T from_bits(unsigned bits) {
  T v;
  v.bits = static_cast<decltype(v.bits)>(bits);
  return v;
}

}  // namespace

TEST_CASE_TEMPLATE("low precision: every pattern survives widening and narrowing", T, bf16, f16,
                   e4m3, e5m2) {
  const std::vector<double> table = values(kFormat<T>);
  const unsigned half = patterns<T>() / 2;
  int wrong = 0, nans = 0;
  for (unsigned bits = 0; bits < patterns<T>(); ++bits) {
    const float wide = static_cast<float>(from_bits<T>(bits));
    const unsigned magnitude = bits % half, back = T(wide).bits;
    wrong += std::signbit(wide) != (bits >= half);
    if (std::isnan(wide)) {
      ++nans;
      wrong += magnitude <= kFormat<T>.top;
      wrong += !std::isnan(static_cast<float>(from_bits<T>(back))) || back / half != bits / half;
      continue;
    }
    wrong += back != bits;
    if (magnitude <= kFormat<T>.top)
      wrong += std::abs(static_cast<double>(wide)) != table[magnitude];
    else
      wrong += !std::isinf(wide);
  }
  CHECK(wrong == 0);
  const unsigned specials = half - 1 - kFormat<T>.top;  // infinity and NaNs of one sign
  CHECK(nans == static_cast<int>(2 * (specials - (kFormat<T>.has_infinity ? 1 : 0))));
}

TEST_CASE_TEMPLATE("low precision: random floats round to nearest with ties to even", T, bf16, f16,
                   e4m3, e5m2) {
  std::vector<float> xs;
  const RandomKey anywhere{11, 1, 0}, inside{11, 2, 0};
  const double largest = values(kFormat<T>).back();
  const int digits = static_cast<int>(std::log2(largest));
  for (std::uint64_t i = 0; i < 600'000; ++i) {
    const float x = std::bit_cast<float>(random_bits(anywhere, i));  // every exponent of f32
    if (!std::isnan(x)) xs.push_back(x);
    const std::uint32_t bits = random_bits(inside, i);  // exponents of the narrow format
    const int exponent = static_cast<int>(bits % (2 * static_cast<unsigned>(digits) + 24));
    const float fraction = 1 + static_cast<float>(bits >> 9) * 0x1p-23f;
    xs.push_back(std::ldexp(bits & 256 ? -fraction : fraction, exponent - digits - 22));
  }
  REQUIRE(xs.size() > 1'000'000);
  CHECK(first_wrong<T>(xs) == "");
}

TEST_CASE_TEMPLATE("low precision: midpoints between neighbours and the floats next to them", T,
                   bf16, f16, e4m3, e5m2) {
  const std::vector<double> table = values(kFormat<T>);
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> xs;
  for (std::size_t i = 0; i + 1 < table.size(); ++i) {
    const double middle = (table[i] + table[i + 1]) / 2;
    const float x = static_cast<float>(middle);
    REQUIRE(static_cast<double>(x) == middle);
    for (const float v : {std::nextafter(x, 0.0f), x, std::nextafter(x, infinity)}) {
      xs.push_back(v);
      xs.push_back(-v);
    }
  }
  CHECK(first_wrong<T>(xs) == "");
}

TEST_CASE_TEMPLATE("low precision: the limits of the range, f32's extremes and zeros", T, bf16, f16,
                   e4m3, e5m2) {
  const std::vector<double> table = values(kFormat<T>);
  const float infinity = std::numeric_limits<float>::infinity();
  const double edge = table.back() + (table.back() - table[table.size() - 2]) / 2;
  const float x = static_cast<float>(edge);
  std::vector<float> xs{0.0f,
                        std::nextafter(x, 0.0f),
                        x,
                        std::nextafter(x, infinity),
                        std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::min(),
                        std::numeric_limits<float>::denorm_min(),
                        infinity};
  for (std::size_t i = xs.size(); i-- > 0;) xs.push_back(-xs[i]);
  CHECK(first_wrong<T>(xs) == "");
}

TEST_CASE("low precision: overflow and NaN") {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(bf16(3.4e38f).bits == 0x7f80);
  CHECK(f16(65519.0f).bits == 0x7bff);
  CHECK(f16(65520.0f).bits == 0x7c00);
  CHECK(f16(-1e30f).bits == 0xfc00);
  CHECK(e4m3(1e30f).bits == 0x7e);
  CHECK(e4m3(-infinity).bits == 0xfe);
  CHECK(e5m2(1e30f).bits == 0x7b);
  CHECK(e5m2(infinity).bits == 0x7c);
  CHECK(f16(nan).bits == 0x7e00);
  CHECK(e4m3(nan).bits == 0x7f);
  CHECK(e5m2(nan).bits == 0x7e);
  // A NaN with a payload only in the low half must not become an infinity.
  CHECK(bf16(std::bit_cast<float>(0x7f800001u)).bits == 0x7fc0);
  CHECK(std::isnan(static_cast<float>(e4m3(-nan))));
}

TEST_CASE("low precision: known values") {
  CHECK(static_cast<float>(bf16(3.14159265f)) == 3.140625f);
  CHECK(static_cast<float>(f16(0.1f)) == 0.0999755859375f);
  CHECK(static_cast<float>(f16(0x1p-24f)) == 0x1p-24f);
  CHECK(f16(0x1p-25f).bits == 0);  // half of the smallest: a tie, and 0 is even
  CHECK(static_cast<float>(e4m3(448.0f)) == 448.0f);
  CHECK(static_cast<float>(e4m3(0x1p-9f)) == 0x1p-9f);
  CHECK(static_cast<float>(e5m2(57344.0f)) == 57344.0f);
  CHECK(static_cast<float>(e5m2(0x1p-16f)) == 0x1p-16f);
}

}  // namespace weft::low_precision_test
