#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/router.h"
#include "weft/core/parallel.h"
#include "weft/tests/router_modes.h"
#include "weft/tests/support.h"

namespace weft::router_test {
namespace {

using test::different_bits;
using test::error_of;
using test::kRouterModes;
using test::mismatch;
using test::random;
using test::takes_bias;
using test::values;

constexpr double kInf = std::numeric_limits<double>::infinity();
const RouterScore kScores[] = {RouterScore::softmax, RouterScore::sigmoid,
                               RouterScore::sqrt_softplus};

Tensor fixture(DType dtype = DType::f32) {
  return Tensor::of({2, 1, .5, -1, 0, 3, .2, .1, -.5, .4, 1.5, 1.4, 1, 1.1, .9, .8}, {4, 4}, dtype);
}

// The dense form: the probability of each (token, expert), 0 where it was not chosen.
Tensor dense(const Routing& r, std::int64_t E) {
  const std::int64_t T = r.probs.dim(0), k = r.probs.dim(1);
  const Tensor out = Tensor::zeros({T, E}, DType::f64);
  const std::vector<double> p = values(r.probs), e = values(r.experts);
  for (std::int64_t i = 0; i < T * k; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (e[at] >= 0) out.data<double>()[i / k * E + static_cast<std::int64_t>(e[at])] += p[at];
  }
  return out;
}

// The definition, one row at a time in f64: sort everything and choose.
Tensor by_definition(const Tensor& logits, const Tensor& bias, const RouterOptions& o) {
  const std::int64_t T = logits.dim(0), E = logits.dim(1), k = o.topk;
  const std::vector<double> all = values(logits);
  const std::vector<double> b = bias.defined() ? values(bias) : std::vector<double>();
  const Tensor out = Tensor::zeros({T, E}, DType::f64);
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t t = 0; t < T; ++t) {
    std::vector<double> x(all.begin() + t * E, all.begin() + (t + 1) * E), s = x, rank;
    double total = 0;
    for (const double v : x) total += std::exp(v);
    for (double& v : s) {
      if (o.score == RouterScore::sigmoid)
        v = 1 / (1 + std::exp(-v));
      else if (o.score == RouterScore::sqrt_softplus)
        v = std::sqrt(std::log1p(std::exp(v)));
      else if (o.pre_softmax)
        v = std::exp(v) / total;
    }
    rank = s;
    for (std::int64_t e = 0; bias.defined() && e < E; ++e) rank[at(e)] += b[at(e)];
    const auto best = [](const std::vector<double>& v, std::int64_t n) {
      std::vector<std::int64_t> order(v.size());
      std::iota(order.begin(), order.end(), std::int64_t{0});
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
        return v[static_cast<std::size_t>(i)] > v[static_cast<std::size_t>(j)];
      });
      order.resize(static_cast<std::size_t>(n));
      return order;
    };
    if (o.groups) {
      const std::int64_t size = E / o.groups;
      const std::int64_t best_of_group = o.group_best ? o.group_best : k / o.group_topk;
      std::vector<double> sums;
      for (std::int64_t g = 0; g < o.groups; ++g) {
        std::vector<double> part(rank.begin() + g * size, rank.begin() + (g + 1) * size);
        std::sort(part.begin(), part.end(), std::greater<>());
        sums.push_back(std::accumulate(part.begin(), part.begin() + best_of_group, 0.0));
      }
      const std::vector<std::int64_t> kept = best(sums, o.group_topk);
      for (std::int64_t e = 0; e < E; ++e)
        if (std::find(kept.begin(), kept.end(), e / size) == kept.end()) rank[at(e)] = -kInf;
    }
    double sum = 0;
    const std::vector<std::int64_t> chosen = best(rank, k);
    const bool post = o.score == RouterScore::softmax && !o.pre_softmax;
    for (const std::int64_t e : chosen) sum += post ? std::exp(x[at(e)]) : s[at(e)];
    for (const std::int64_t e : chosen) {
      double p = post ? std::exp(x[at(e)]) / sum : s[at(e)];
      if (o.score != RouterScore::softmax && k > 1 && o.normalise) p /= sum + 1e-20;
      out.data<double>()[t * E + e] = p * o.scaling;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("router: R1 fixture in every score mode") {
  const Tensor bias = Tensor::of({0, -.9, .3, 0}, {4});
  struct Case {
    RouterOptions options;
    Tensor bias, want;
  };
  const Case cases[] = {
      {{.topk = 2},
       {},
       Tensor::of({.73105858, .26894142, 0, 0, 0, .94267582, .05732418, 0, 0, 0, .52497919,
                   .47502081, .47502081, .52497919, 0, 0},
                  {4, 4}, DType::f64)},
      {{.topk = 2, .pre_softmax = true, .scaling = 2.5},
       {},
       Tensor::of({1.52365009, .56051955, 0, 0, 0, 2.14478067, .13042425, 0, 0, 0, 1.05349931,
                   .9532456, .65295648, .72162851, 0, 0},
                  {4, 4}, DType::f64)},
      {{.topk = 2, .score = RouterScore::sigmoid},
       {},
       Tensor::of({.5464491, .4535509, 0, 0, 0, .63403153, .36596847, 0, 0, 0, .50475089, .49524911,
                   .49351877, .50648123, 0, 0},
                  {4, 4}, DType::f64)},
      {{.topk = 2, .score = RouterScore::sigmoid},
       bias,
       Tensor::of({.58592604, 0, .41407396, 0, 0, 0, .51156239, .48843761, 0, 0, .50475089,
                   .49524911, .50697259, 0, .49302741, 0},
                  {4, 4}, DType::f64)},
  };
  for (const Case& c : cases)
    for (const DType t : {DType::f32, DType::f64})
      CHECK(mismatch(dense(route(fixture(t), c.bias, c.options), 4), c.want, 1e-6) == "");
  // Slots are ordered best first.
  const Routing r = route(fixture(), {}, {.topk = 2});
  CHECK(mismatch(r.experts, Tensor::of({0, 1, 1, 2, 2, 3, 1, 0}, {4, 2}, DType::i64), 0) == "");
  CHECK(r.probs.dtype() == DType::f32);
  CHECK(route(fixture(DType::bf16), {}, {.topk = 2}).probs.dtype() == DType::f32);
  // Groups: 1.61185566 against .89140075 and so on selects the groups 0, 0, 1, 0.
  const Routing grouped = route(
      fixture(), {}, {.topk = 2, .score = RouterScore::sigmoid, .groups = 2, .group_topk = 1});
  CHECK(mismatch(grouped.experts, Tensor::of({0, 1, 1, 0, 2, 3, 1, 0}, {4, 2}, DType::i64), 0) ==
        "");
}

TEST_CASE("router: every mode agrees with the definition, and f32 and bf16 with f64") {
  for (const RouterOptions& o : kRouterModes)
    for (const Shape& s : {Shape{37, 8}, Shape{5, 64}, Shape{0, 8}, Shape{3, 256}}) {
      CAPTURE(to_string(s));
      CAPTURE(static_cast<int>(o.score));
      CAPTURE(o.topk);
      CAPTURE(o.groups);
      for (const bool biased : {false, true}) {
        if (biased && !takes_bias(o)) continue;
        const Tensor bias = biased ? test::random_in({s[1]}, -.4, .4, 9).to(DType::f32) : Tensor();
        for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
          const Tensor x = random(s, 3).to(t);
          const Tensor want = by_definition(x.to(DType::f64), bias, o);
          CHECK(mismatch(dense(route(x, bias, o), s[1]), want, t == DType::f64 ? 1e-14 : 1e-6) ==
                "");
          CHECK(mismatch(dense(route(test::strided(x), bias, o), s[1]), want,
                         t == DType::f64 ? 1e-14 : 1e-6) == "");
        }
      }
    }
}

TEST_CASE("router: R3 at most group_topk groups are used") {
  const RouterOptions o{.topk = 4, .score = RouterScore::sigmoid, .groups = 4, .group_topk = 2};
  const Tensor x = random({200, 16}, 5, DType::f32);
  const Routing r = route(x, {}, o);
  CHECK(mismatch(dense(r, 16), by_definition(x.to(DType::f64), {}, o), 1e-6) == "");
  const std::vector<double> e = values(r.experts);
  for (std::size_t t = 0; t < 200; ++t) {
    std::vector<int> touched;
    for (std::size_t i = 0; i < 4; ++i) touched.push_back(static_cast<int>(e[t * 4 + i]) / 4);
    std::sort(touched.begin(), touched.end());
    CHECK(std::unique(touched.begin(), touched.end()) - touched.begin() <= 2);
  }
}

TEST_CASE("router: equal scores resolve by lowest index and extremes stay in range") {
  const auto chosen = [](const Tensor& x, const RouterOptions& o, const Tensor& bias = {}) {
    return route(x, bias, o).experts;
  };
  const auto i64 = [](std::initializer_list<double> v, const Shape& s) {
    return Tensor::of(v, s, DType::i64);
  };
  for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const RouterScore score : kScores) {
      const RouterOptions o{.topk = 3, .score = score};
      CHECK(mismatch(chosen(Tensor::zeros({2, 40}, t), o), i64({0, 1, 2, 0, 1, 2}, {2, 3}), 0) ==
            "");
      CHECK(mismatch(chosen(Tensor::of({1, 2, 0, 2, 1, 2}, {1, 6}, t), o), i64({1, 3, 5}, {1, 3}),
                     0) == "");
      CHECK(mismatch(chosen(Tensor::of({1, 2, 0, -0.0, 2, 1}, {1, 6}, t), o),
                     i64({1, 4, 0}, {1, 3}), 0) == "");
      // All scores are far below 0, where a maximum initialised with 0 is wrong.
      CHECK(mismatch(chosen(Tensor::of({-90, -70, -80, -60}, {1, 4}, t), o), i64({3, 1, 2}, {1, 3}),
                     0) == "");
      CHECK(mismatch(chosen(Tensor::of({-kInf, 3, -kInf, -kInf}, {1, 4}, t), o),
                     i64({1, 0, 2}, {1, 3}), 0) == "");
      CHECK(mismatch(chosen(Tensor::of({1, std::nan(""), 5, 2}, {1, 4}, t), o),
                     i64({1, 2, 3}, {1, 3}), 0) == "");
      // k = E and E = 1.
      CHECK(mismatch(chosen(Tensor::of({1, 3, 2}, {1, 3}, t), o), i64({1, 2, 0}, {1, 3}), 0) == "");
    }
  const RouterOptions one{.topk = 1, .pre_softmax = true};
  CHECK(mismatch(route(Tensor::of({-5}, {1, 1}), {}, one).probs, Tensor::ones({1, 1}), 0) == "");
  // Groups with equal sums and equal experts within.
  const RouterOptions grouped{
      .topk = 2, .score = RouterScore::sigmoid, .groups = 3, .group_topk = 2};
  CHECK(mismatch(chosen(Tensor::zeros({1, 6}), grouped), i64({0, 1}, {1, 2}), 0) == "");
  CHECK(mismatch(chosen(Tensor::of({0, 0, 1, 1, 1, 1}, {1, 6}), grouped), i64({2, 3}, {1, 2}), 0) ==
        "");
  // A saturated sigmoid still ranks larger logits.
  const RouterOptions sigmoid{.topk = 2, .score = RouterScore::sigmoid};
  CHECK(mismatch(chosen(Tensor::of({40, 50, 60}, {1, 3}), sigmoid), i64({2, 1}, {1, 2}), 0) == "");
}

TEST_CASE("router: groups with logits of -inf or the lowest float") {
  const RouterOptions o{.topk = 2, .groups = 2, .group_topk = 2};
  const double lowest = -std::numeric_limits<float>::max();
  const Tensor want = Tensor::of({1, 0}, {1, 2}, DType::i64);
  for (const double low : {lowest, -kInf})
    for (const DType t : {DType::f32, DType::f64}) {
      CAPTURE(low);
      const Routing r = route(Tensor::of({1, 2, low, low}, {1, 4}, t), {}, o);
      CHECK(mismatch(r.experts, want, 0) == "");
    }
  // The two best of the second group sum to the lowest float, and the group is still kept.
  const double half = lowest / 2;
  const Tensor x = Tensor::of({5, 4, -3e38, -3e38, half, half, half, half}, {1, 8});
  const RouterOptions pairs{.topk = 4, .groups = 2, .group_topk = 2};
  CHECK(mismatch(route(x, {}, pairs).experts, Tensor::of({0, 1, 4, 5}, {1, 4}, DType::i64), 0) ==
        "");
}

TEST_CASE("router: the bias affects the choice but not the probabilities") {
  const RouterOptions o{.topk = 2, .score = RouterScore::sigmoid};
  // A score of 1e-6 next to a bias of 1: subtracting the bias again would lose all digits.
  const Tensor x = Tensor::of({-13.8, -13.0, -14.0}, {1, 3}), bias = Tensor::of({1, -1, 1}, {3});
  const Routing r = route(x, bias, o);
  CHECK(mismatch(r.experts, Tensor::of({0, 2}, {1, 2}, DType::i64), 0) == "");
  const double a = 1 / (1 + std::exp(13.8)), c = 1 / (1 + std::exp(14.0));
  CHECK(mismatch(r.probs, Tensor::of({a / (a + c), c / (a + c)}, {1, 2}), 1e-6) == "");
}

TEST_CASE("router: the number of threads changes no bit and meta gives the same shapes") {
  const test::RestoreThreads restore;
  const RouterOptions o{.topk = 3, .score = RouterScore::sqrt_softplus};
  const Tensor x = random({3000, 33}, 1, DType::f32);
  set_num_threads(1);
  const Routing one = route(x, {}, o);
  set_num_threads(3);
  const Routing three = route(x, {}, o);
  CHECK(different_bits(one.probs, three.probs) == "");
  CHECK(different_bits(one.experts, three.experts) == "");

  for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const Routing r = route(Tensor::empty({7, 8}, t, kMeta), {}, o);
    CHECK(r.probs.shape() == Shape{7, 3});
    CHECK(r.probs.dtype() == (t == DType::f64 ? DType::f64 : DType::f32));
    CHECK(r.experts.dtype() == DType::i64);
  }
}

TEST_CASE("router: R2 errors name the rule") {
  const Tensor x = random({3, 8}, 1, DType::f32);
  const auto text = [&](const RouterOptions& o, const Tensor& bias = {}) {
    return error_of([&] { route(x, bias, o); });
  };
  const RouterScore sigmoid = RouterScore::sigmoid;
  CHECK(text({.topk = 9}) == "route: topk must be at most the number of experts 8, got 9");
  CHECK(text({.topk = 0}) == "route: topk must be in [1, 32], got 0");
  CHECK(text({.topk = 33}) == "route: topk must be in [1, 32], got 33");
  CHECK(text({.topk = 1}) ==
        "route: topk 1 with softmax needs pre_softmax = true (a softmax over one expert is always "
        "1 and has no gradient), got false");
  CHECK(text({.score = sigmoid, .pre_softmax = true}) ==
        "route: pre_softmax goes with score softmax only, got sigmoid");
  CHECK(text({.score = RouterScore::sqrt_softplus, .pre_softmax = true}) ==
        "route: pre_softmax goes with score softmax only, got sqrt_softplus");
  CHECK(text({.topk = 2}, Tensor::zeros({8})) ==
        "route: an expert bias goes with score sigmoid or sqrt_softplus, got softmax");
  CHECK(text({.scaling = 0}) == "route: scaling must be above 0, got 0");
  CHECK(text({.groups = 3, .group_topk = 1}) ==
        "route: groups must divide the number of experts 8, got 3");
  CHECK(text({.group_topk = 1}) ==
        "route: group_topk needs groups, got group_topk 1 and no groups");
  CHECK(text({.groups = 4, .group_topk = 5}) ==
        "route: group_topk must be in [1, groups 4], got 5");
  CHECK(text({.groups = 4, .group_topk = 0}) ==
        "route: group_topk must be in [1, groups 4], got 0");
  CHECK(text({.topk = 2, .groups = 4, .group_topk = 3}) ==
        "route: topk must be at least group_topk 3 (a group's score is the sum of its topk / "
        "group_topk best), got 2");
  CHECK(text({.topk = 3, .groups = 4, .group_topk = 1}) ==
        "route: topk must be at most 2 (group_topk 1 groups of 2 experts), got 3");
  CHECK(text({.normalise = false}) ==
        "route: normalise = false goes with score sigmoid or sqrt_softplus, got softmax");
  CHECK(text({.group_best = 2}) ==
        "route: group_best needs groups, got group_best 2 and no groups");
  CHECK(text({.groups = 4, .group_topk = 2, .group_best = 3}) ==
        "route: group_best must be in [0, 2] (experts of a group, at most 32), got 3");
  CHECK(error_of([&] {
          route(Tensor::zeros({2, 128}), {}, {.groups = 64, .group_topk = 33, .group_best = 1});
        }) == "route: group_topk must be at most 32, got 33");
  CHECK(text({.score = sigmoid}, Tensor::zeros({7})) ==
        "route: expert_bias must have shape [8] (experts of logits [3, 8]), got [7]");
  CHECK(text({.score = sigmoid}, Tensor::zeros({8}, DType::bf16)) ==
        "route: expert_bias must have dtype f32 (its steps are lost in a narrower one), got bf16");
  CHECK(text({.score = sigmoid}, Tensor::zeros({8}, DType::f32, kMeta)) ==
        "route: expert_bias must be on device cpu like logits, got meta");
  CHECK(error_of([&] {
          route(Tensor::zeros({2, 1025}), {}, {});
        }) == "route: experts must be in [1, 1024], got 1025");
  CHECK(error_of([&] {
          route(Tensor::zeros({2, 0}), {}, {});
        }) == "route: experts must be in [1, 1024], got 0");
  CHECK(error_of([&] { route(Tensor::zeros({8}), {}, {}); }) ==
        "route: logits must have shape [tokens, experts], got [8]");
  CHECK(error_of([&] { route({}, {}, {}); }) ==
        "route: logits must be a tensor, got a null handle");
  CHECK(error_of([&] { route(x.to(DType::i32), {}, {}); }) ==
        "route: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(error_of([&] { route(x, {}, {}, Tensor::zeros({4}, DType::boolean)); }) ==
        "route: padding must have shape [3] (tokens of logits [3, 8]), got [4]");
  CHECK(error_of([&] { route(x, {}, {}, Tensor::zeros({3})); }) ==
        "route: padding must have dtype bool, got f32");
  CHECK(error_of([&] { route(x, {}, {}, Tensor::zeros({3}, DType::boolean, kMeta)); }) ==
        "route: padding must be on device cpu like logits, got meta");
}

TEST_CASE("router: the largest router of 1024 experts with topk 32") {
  const Tensor x = random({7, 1024}, 11);
  for (const RouterOptions& o :
       {RouterOptions{.topk = 32, .score = RouterScore::sigmoid, .groups = 8, .group_topk = 4},
        RouterOptions{.topk = 32}})
    for (const DType t : {DType::f32, DType::f64})
      CHECK(mismatch(dense(route(x.to(t), {}, o), 1024),
                     by_definition(x.to(t).to(DType::f64), {}, o),
                     t == DType::f64 ? 1e-14 : 1e-6) == "");
}

}  // namespace weft::router_test
