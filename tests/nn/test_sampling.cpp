#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>

#include "weft/nn/sampling.h"
#include "weft/tests/support.h"

namespace weft::sampling_test {
using nn::sample_token;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Relative frequencies over many random keys.
std::map<std::int64_t, double> frequencies(const Tensor& logits, const nn::SamplingOptions& o,
                                           int draws = 20000) {
  std::map<std::int64_t, double> f;
  for (int i = 0; i < draws; ++i)
    f[sample_token(logits, o, {7, static_cast<std::uint64_t>(i), 0})] += 1.0 / draws;
  return f;
}

Tensor log_of(std::initializer_list<double> p) {
  std::vector<double> v;
  for (const double x : p) v.push_back(std::log(x));
  return Tensor::from<double>(v, {static_cast<std::int64_t>(v.size())});
}

}  // namespace

TEST_CASE("sample_token: temperature 0 takes the most likely token and the first of equals") {
  CHECK(sample_token(Tensor::of({1, 5, 3, 5}, {4}), {.temperature = 0}, {}) == 1);
  CHECK(sample_token(Tensor::of({-kInf, -3, -kInf}, {3}), {.temperature = 0}, {}) == 1);
  CHECK(sample_token(Tensor::of({2}, {1}), {.temperature = 0}, {}) == 0);
}

TEST_CASE("sample_token: frequencies follow the softmax") {
  auto f = frequencies(log_of({0.5, 0.2, 0.3}), {});
  CHECK(f[0] == doctest::Approx(0.5).epsilon(0.03));
  CHECK(f[1] == doctest::Approx(0.2).epsilon(0.05));
  CHECK(f[2] == doctest::Approx(0.3).epsilon(0.04));
}

TEST_CASE("sample_token: a low temperature sharpens and a high one flattens") {
  // p^2 and sqrt(p), normalised.
  auto sharp = frequencies(log_of({0.75, 0.25}), {.temperature = 0.5});
  CHECK(sharp[0] == doctest::Approx(0.9).epsilon(0.02));
  auto flat = frequencies(log_of({0.8, 0.2}), {.temperature = 2});
  CHECK(flat[0] == doctest::Approx(2.0 / 3).epsilon(0.02));
}

TEST_CASE("sample_token: a very small temperature does not overflow") {
  const Tensor logits = Tensor::of({1000, -1000, 999}, {3});
  CHECK(frequencies(logits, {.temperature = 1e-300}, 100).at(0) == doctest::Approx(1));
}

TEST_CASE("sample_token: top_k keeps k tokens and breaks ties by index") {
  auto f = frequencies(log_of({0.1, 0.4, 0.2, 0.3}), {.top_k = 2});
  CHECK(f.size() == 2);
  CHECK(f[1] == doctest::Approx(4.0 / 7).epsilon(0.03));
  CHECK(f[3] == doctest::Approx(3.0 / 7).epsilon(0.03));
  f = frequencies(Tensor::zeros({5}), {.top_k = 3});
  CHECK(f.size() == 3);
  CHECK(f.count(0) + f.count(1) + f.count(2) == 3);
  CHECK(frequencies(log_of({0.6, 0.4}), {.top_k = 1}, 100).at(0) == doctest::Approx(1));
  CHECK(frequencies(log_of({0.6, 0.4}), {.top_k = 99}).size() == 2);
}

TEST_CASE("sample_token: top_p keeps the smallest set of likeliest tokens that reaches it") {
  const Tensor logits = log_of({0.1, 0.5, 0.15, 0.25});
  CHECK(frequencies(logits, {.top_p = 0.4}).size() == 1);
  CHECK(frequencies(logits, {.top_p = 0.6}).size() == 2);
  auto f = frequencies(logits, {.top_p = 0.8});
  CHECK(f.size() == 3);
  CHECK(f[1] == doctest::Approx(0.5 / 0.9).epsilon(0.03));
  CHECK(frequencies(logits, {.top_p = 1}).size() == 4);
  CHECK(frequencies(logits, {.top_p = 1e-9}, 100).at(1) == doctest::Approx(1));
}

TEST_CASE("sample_token: top_p applies to the tokens that top_k keeps") {
  // top_k leaves 0.5 and 0.3, normalised to 0.625 and 0.375, so the first token alone reaches 0.6.
  const Tensor logits = log_of({0.5, 0.3, 0.2});
  CHECK(frequencies(logits, {.top_k = 2, .top_p = 0.6}).size() == 1);
  CHECK(frequencies(logits, {.top_p = 0.6}).size() == 2);
}

TEST_CASE("sample_token: a token at -inf is never drawn") {
  const Tensor logits = Tensor::of({-kInf, 0, -kInf, 0}, {4});
  for (const nn::SamplingOptions& o :
       {nn::SamplingOptions{}, {.temperature = 100}, {.top_k = 3}, {.top_p = 0.99}}) {
    const auto f = frequencies(logits, o, 2000);
    CHECK(f.size() == 2);
    CHECK(f.count(1) + f.count(3) == 2);
  }
}

TEST_CASE("sample_token: a token that is not allowed is never drawn") {
  const Tensor logits = Tensor::of({9, 1, 9, 1}, {4});
  const auto odd = [](std::int64_t token) { return token % 2 == 1; };
  CHECK(sample_token(logits, {.temperature = 0, .allows = odd}, {}) == 1);
  for (const auto& [token, f] : frequencies(logits, {.top_k = 3, .top_p = 0.9, .allows = odd}, 50))
    CHECK(odd(token));
  const std::vector<double> p = nn::token_probabilities(logits, {.allows = odd});
  CHECK(p == std::vector<double>{0, 0.5, 0, 0.5});
  CHECK(test::error_of([&] {
          sample_token(logits, {.allows = [](std::int64_t) { return false; }}, {});
        }) == "sample_token: at least one logit must be above -inf, got none of 4");
}

TEST_CASE("sample_token: the key determines the token and low precision logits work") {
  const Tensor logits = test::random({50}, 3, DType::f32);
  CHECK(sample_token(logits, {}, {1, 2, 3}) == sample_token(logits, {}, {1, 2, 3}));
  CHECK(frequencies(logits, {}, 500).size() > 10);
  CHECK(sample_token(logits.to(DType::bf16), {.temperature = 0}, {}) ==
        sample_token(logits, {.temperature = 0}, {}));
}

TEST_CASE("sample_token: errors name the rule") {
  const Tensor logits = Tensor::of({1, 2}, {2});
  const auto error = [](const Tensor& l, const nn::SamplingOptions& o) {
    return test::error_of([&] { sample_token(l, o, {}); });
  };
  CHECK(error(Tensor::zeros({2, 2}), {}) ==
        "sample_token: logits must have shape (V) with V at least 1, got [2, 2]");
  CHECK(error(Tensor::zeros({0}), {}) ==
        "sample_token: logits must have shape (V) with V at least 1, got [0]");
  CHECK(error(logits, {.temperature = -1}) ==
        "sample_token: temperature must be at least 0, got -1");
  CHECK(error(logits, {.top_k = -2}) == "sample_token: top_k must be at least 0, got -2");
  CHECK(error(logits, {.top_p = 0}) == "sample_token: top_p must be in (0, 1], got 0");
  CHECK(error(logits, {.top_p = 1.5}) == "sample_token: top_p must be in (0, 1], got 1.5");
  CHECK(error(Tensor::of({0, std::nan("")}, {2}), {}) ==
        "sample_token: logits must not be NaN, got one at token 1");
  CHECK(error(Tensor::of({kInf, 0}, {2}), {}) ==
        "sample_token: logits must not be +inf, got one at token 0");
  CHECK(error(Tensor::of({-kInf, -kInf}, {2}), {}) ==
        "sample_token: at least one logit must be above -inf, got none of 2");
}

TEST_CASE("token_probabilities: gives the distribution that sample_token draws from") {
  const Tensor logits = Tensor::of({1, 3, -INFINITY, 2, 2}, {5}, DType::f64);
  const auto p = [&](const nn::SamplingOptions& o) { return nn::token_probabilities(logits, o); };
  CHECK(p({.temperature = 0}) == std::vector<double>{0, 1, 0, 0, 0});
  const double e = std::exp(1.0), all = 1 + e * e + 2 * e;
  const std::vector<double> want = {1 / all, e * e / all, 0, e / all, e / all}, got = p({});
  for (std::size_t i = 0; i < 5; ++i) CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-14));
  const std::vector<double> two = p({.temperature = 0.5, .top_k = 2});
  CHECK(two[1] == doctest::Approx(e * e / (e * e + 1)).epsilon(1e-14));
  CHECK(two[3] == doctest::Approx(1 / (e * e + 1)).epsilon(1e-14));
  CHECK(two[4] == 0);
  CHECK(p({.top_p = 0.3}) == std::vector<double>{0, 1, 0, 0, 0});
}

TEST_CASE("draw_token: draws in proportion to the weights and never a zero weight") {
  const std::vector<double> weights = {0, 3, 0, 1, 0};
  int seen[5] = {};
  for (std::uint64_t i = 0; i < 4000; ++i)
    ++seen[nn::draw_token(weights, {9, stream_of("draw"), i})];
  CHECK(seen[0] + seen[2] + seen[4] == 0);
  CHECK(seen[1] == doctest::Approx(3000).epsilon(0.05));
  const auto error = [](const std::vector<double>& w) {
    return test::error_of([&] { nn::draw_token(w, {}); });
  };
  CHECK(error({0, 0}) ==
        "draw_token: weights must be at least 0 with a sum above 0, got a sum of 0");
  CHECK(error({2, -1}) ==
        "draw_token: weights must be at least 0 with a sum above 0, got a sum of 1");
}

}  // namespace weft::sampling_test
