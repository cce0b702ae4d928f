#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/router_loss.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::router_loss_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

const RouterScore kScores[] = {RouterScore::softmax, RouterScore::sigmoid,
                               RouterScore::sqrt_softplus};

Tensor fixture(DType dtype = DType::f32) {
  return Tensor::of({2, 1, .5, -1, 0, 3, .2, .1, -.5, .4, 1.5, 1.4, 1, 1.1, .9, .8}, {4, 4}, dtype);
}

Tensor aux(const Tensor& x, std::int64_t k, double coefficient = 1, const Tensor& padding = {},
           RouterScore score = RouterScore::softmax, std::int64_t sequences = 1) {
  return balance_loss(x, count_top_experts(x, k, sequences, padding), score, coefficient, padding);
}

// The definition in f64: the mean over tokens of E sum_e s[t, e] C[e] / (k T) per sequence.
double by_definition(const Tensor& logits, RouterScore score, std::int64_t k, std::int64_t parts,
                     const std::vector<bool>& padded = {}) {
  const std::int64_t T = logits.dim(0), E = logits.dim(1), length = T / parts;
  std::vector<double> x(static_cast<std::size_t>(T * E));
  logits.copy_to(x);
  double total = 0, counted = 0;
  for (std::int64_t b = 0; b < parts; ++b) {
    std::vector<double> P(static_cast<std::size_t>(E), 0.0), C = P;
    double n = 0;
    for (std::int64_t t = b * length; t < (b + 1) * length; ++t) {
      if (!padded.empty() && padded[static_cast<std::size_t>(t)]) continue;
      ++n;
      std::vector<double> s(x.begin() + t * E, x.begin() + (t + 1) * E);
      std::vector<std::size_t> order(s.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](auto i, auto j) { return s[i] > s[j]; });
      for (std::int64_t i = 0; i < k; ++i) ++C[order[static_cast<std::size_t>(i)]];
      for (double& v : s) {
        if (score == RouterScore::softmax) v = std::exp(v);
        if (score == RouterScore::sigmoid) v = 1 / (1 + std::exp(-v));
        if (score == RouterScore::sqrt_softplus) v = std::sqrt(std::log1p(std::exp(v)));
      }
      const double sum = std::accumulate(s.begin(), s.end(), 0.0);
      for (std::size_t e = 0; e < s.size(); ++e) P[e] += s[e] / sum;
    }
    counted += n;
    for (std::size_t e = 0; n > 0 && e < P.size(); ++e)
      total += static_cast<double>(E) * P[e] * C[e] / (static_cast<double>(k) * n);
  }
  return counted > 0 ? total / counted : 0;
}

Tensor gradient(const std::function<Tensor(const Tensor&)>& loss, const Tensor& x) {
  Tensor leaf = x.detach().set_requires_grad();
  Tape tape;
  return tape.gradients(loss(leaf), {leaf})[0];
}

Tensor row(const Tensor& t, std::int64_t i) { return t.detach().select(0, i).contiguous(); }

}  // namespace

TEST_CASE("router_loss: R5 aux fixture of value and gradient") {
  const Tensor x = fixture();
  CHECK(mismatch(count_top_experts(x, 2), Tensor::of({2, 3, 2, 1}, {1, 4}, DType::i64), 0) == "");
  CHECK(aux(x, 2).item() == doctest::Approx(1.1047948113997574).epsilon(1e-6));
  CHECK(aux(x, 2, 0.01).item() == doctest::Approx(0.011047948113997574).epsilon(1e-6).scale(0));
  CHECK(aux(fixture(DType::f64), 2).item() == doctest::Approx(1.1047948113997574).epsilon(1e-15));
  const Tensor g = gradient([](const Tensor& v) { return aux(v, 2); }, x);
  // Differences after cancellation of terms of a quarter (p times a weight of at most 1.5, over
  // four tokens).
  CHECK(mismatch(row(g, 0), Tensor::of({-.01476909, .02259273, -.00329543, -.00452821}, {4}), 1e-7,
                 0.25) == "");
  CHECK(mismatch(row(g, 1), Tensor::of({-.00432846, .02029958, -.00528679, -.01068433}, {4}), 1e-7,
                 0.25) == "");
}

TEST_CASE("router_loss: the fixture by sequence in batch-major order") {
  // Two sequences of two tokens: tokens 0 and 2, and tokens 1 and 3 of the fixture.
  const Tensor x =
      Tensor::of({2, 1, .5, -1, -.5, .4, 1.5, 1.4, 0, 3, .2, .1, 1, 1.1, .9, .8}, {4, 4});
  CHECK(aux(x, 2, 1, {}, RouterScore::softmax, 2).item() ==
        doctest::Approx(1.221380089523564).epsilon(1e-6));
  // One sequence is the whole batch.
  CHECK(different_bits(aux(x, 2, 1, {}, RouterScore::softmax, 1), aux(x, 2)) == "");
}

TEST_CASE("router_loss: R10 value and gradient of the z-loss") {
  const Tensor x = fixture();
  CHECK(z_loss(x, 1).item() == doctest::Approx(6.811432160016571).epsilon(1e-6));
  CHECK(z_loss(x, 1e-3).item() == doctest::Approx(6.811432160016571e-3).epsilon(1e-6).scale(0));
  const Tensor g = gradient([](const Tensor& v) { return z_loss(v, 1); }, x);
  CHECK(mismatch(row(g, 0), Tensor::of({.76035683, .27971964, .16965854, .03785594}, {4}), 1e-6) ==
        "");
}

TEST_CASE("router_loss: R4 even scores or even counts give the coefficient") {
  for (const RouterScore score : kScores)
    for (const std::int64_t k : {1, 2, 3}) {
      const Tensor zero = Tensor::zeros({24, 8});
      for (const std::int64_t sequences : {1, 4})
        CHECK(aux(zero, k, 0.02, {}, score, sequences).item() ==
              doctest::Approx(0.02).epsilon(1e-6).scale(0));
      // Each token prefers its own expert and its neighbours, cyclically.
      const Tensor cyclic = Tensor::zeros({24, 8});
      for (std::int64_t t = 0; t < 24; ++t)
        for (std::int64_t i = 0; i < 3; ++i)
          cyclic.data<float>()[t * 8 + (t + i) % 8] = static_cast<float>(9 - i);
      for (const std::int64_t sequences : {1, 3})
        CHECK(aux(cyclic, k, 0.02, {}, score, sequences).item() ==
              doctest::Approx(0.02).epsilon(1e-6).scale(0));
    }
}

TEST_CASE("router_loss: the loss can be below the coefficient") {
  const Tensor p = Tensor::of({.34, .33, .33, .34, .33, .33, 0, .51, .49}, {3, 3}, DType::f64);
  CHECK(mismatch(count_top_experts(log(p), 1), Tensor::of({2, 1, 0}, {1, 3}, DType::i64), 0) == "");
  // 3 / (1 * 9) * (2 * 0.68 + 1 * 1.17)
  CHECK(aux(log(p), 1).item() == doctest::Approx(2.53 / 3).epsilon(1e-12));
}

TEST_CASE("router_loss: every score and scope agrees with the definition") {
  for (const RouterScore score : kScores)
    for (const std::int64_t k : {1, 2, 5})
      for (const std::int64_t parts : {1, 2, 6})
        for (const std::int64_t E : {5, 16, 40}) {
          const Tensor x = random({12, E}, 3);
          const double want = by_definition(x, score, k, parts);
          CHECK(aux(x, k, 1, {}, score, parts).item() == doctest::Approx(want).epsilon(1e-13));
          CHECK(aux(x.to(DType::f32), k, 1, {}, score, parts).item() ==
                doctest::Approx(want).epsilon(1e-6));
          const Tensor narrow = x.to(DType::bf16);
          CHECK(aux(narrow, k, 1, {}, score, parts).item() ==
                doctest::Approx(by_definition(narrow, score, k, parts)).epsilon(1e-6));
        }
}

TEST_CASE("router_loss: gradients match finite differences") {
  const Tensor pad = Tensor::of({0, 1, 0, 0, 1, 0}, {6}, DType::boolean);
  for (const RouterScore score : kScores)
    for (const std::int64_t parts : {1, 3})
      for (const Tensor& padding : {Tensor(), pad}) {
        const auto f = [&](const TensorList& in) {
          return aux(in[0], 2, 0.7, padding, score, parts);
        };
        CHECK(gradcheck(f, {random({6, 5}, 3)}, {.tolerance = 1e-8}) == "");
        CHECK(gradcheck(f, {test::strided(random({6, 20}, 4))}, {.tolerance = 1e-8}) == "");
      }
  for (const Tensor& padding : {Tensor(), pad}) {
    const auto z = [&](const TensorList& in) { return z_loss(in[0], 0.3, padding); };
    CHECK(gradcheck(z, {random({6, 7}, 5)}) == "");
    const auto both = [&](const TensorList& in) {
      return add(
          mul(z_loss(in[0], 0.3, padding), aux(in[0], 2)),
          balance_loss(in[0], count_top_experts(in[0], 1), RouterScore::sigmoid, 2, padding));
    };
    CHECK(gradcheck(both, {random({6, 7}, 6)}) == "");
  }
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const RouterScore score : kScores) {
      const auto f = [&](const Tensor& v) {
        return add(aux(v, 2, 3, pad, score, 2), z_loss(v, 2, pad));
      };
      const Tensor x = random({6, 33}, 7).to(t);
      const Tensor got = gradient(f, x);
      CHECK(got.dtype() == t);
      CHECK(mismatch(got, gradient(f, x.to(DType::f64)), t == DType::f32 ? 1e-6 : 1e-2) == "");
    }
}

TEST_CASE("router_loss: padded tokens are left out of every loss and count") {
  const Tensor x = random({6, 8}, 3), pad = Tensor::of({0, 1, 0, 0, 1, 1}, {6}, DType::boolean);
  const std::vector<bool> padded = {false, true, false, false, true, true};
  const Tensor kept = index_select(x, 0, Tensor::of({0, 2, 3}, {3}, DType::i64));
  CHECK(mismatch(count_top_experts(x, 2, 1, pad), count_top_experts(kept, 2), 0) == "");
  CHECK(mismatch(z_loss(x, 1, pad), z_loss(kept, 1), 1e-14) == "");
  for (const RouterScore score : kScores)
    for (const std::int64_t parts : {1, 2, 3})
      CHECK(aux(x, 2, 1, pad, score, parts).item() ==
            doctest::Approx(by_definition(x, score, 2, parts, padded)).epsilon(1e-13));
  // The content of a padded row has no effect.
  const Tensor spoiled = x.clone();
  spoiled.data<double>()[8] = std::numeric_limits<double>::quiet_NaN();
  CHECK(different_bits(z_loss(spoiled, 1, pad), z_loss(x, 1, pad)) == "");
  CHECK(different_bits(aux(spoiled, 2, 1, pad), aux(x, 2, 1, pad)) == "");
  const Tensor g =
      gradient([&](const Tensor& v) { return add(aux(v, 2, 1, pad), z_loss(v, 1, pad)); }, spoiled);
  for (const std::int64_t t : {1, 4, 5})
    CHECK(mismatch(row(g, t), Tensor::zeros({8}, DType::f64), 0) == "");
}

TEST_CASE("router_loss: only padding and zero tokens give 0") {
  const Tensor pad = Tensor::ones({4}, DType::boolean);
  for (const RouterScore score : kScores) {
    CHECK(aux(fixture(), 2, 1, pad, score).item() == 0);
    const Tensor g =
        gradient([&](const Tensor& v) { return add(aux(v, 2, 1, pad, score), z_loss(v, 1, pad)); },
                 fixture());
    CHECK(mismatch(g, Tensor::zeros({4, 4}), 0) == "");
    CHECK(aux(Tensor::zeros({0, 4}), 2, 1, {}, score).item() == 0);
  }
  CHECK(z_loss(fixture(), 1, pad).item() == 0);
  CHECK(z_loss(Tensor::zeros({0, 4}), 1).item() == 0);
  CHECK(gradient([](const Tensor& v) { return z_loss(v, 1); }, Tensor::zeros({0, 4})).numel() == 0);
}

TEST_CASE("router_loss: R7 counts summed over ranks with equal data change nothing") {
  const Tensor x = random({8, 6}, 3, DType::f32);
  const auto loss = [&](double ranks) {
    return [ranks](const Tensor& v) {
      return balance_loss(v, mul(count_top_experts(v, 2), ranks), RouterScore::softmax, 0.5);
    };
  };
  for (const double ranks : {2, 4}) {
    CHECK(different_bits(loss(ranks)(x), loss(1)(x)) == "");
    CHECK(different_bits(gradient(loss(ranks), x), gradient(loss(1), x)) == "");
  }
}

TEST_CASE("router_loss: shards weighted by their tokens add up to the whole") {
  // As in accumulation and data parallelism: sum of (loss * tokens) over micro-batches / tokens.
  const Tensor x = random({12, 6}, 3), pad = Tensor::zeros({12}, DType::boolean);
  for (const std::int64_t t : {0, 1, 2, 8}) pad.data<bool>()[t] = true;
  const auto by_parts = [&](auto loss, bool by_sequence) {
    const double whole = loss(x, pad, by_sequence ? 3 : 1).item();
    double sum = 0;
    for (const auto& [first, tokens, kept] : {std::tuple{0, 4, 1}, {4, 8, 7}})
      sum += kept * loss(x.narrow(0, first, tokens), pad.narrow(0, first, tokens),
                         by_sequence ? tokens / 4 : 1)
                        .item();
    CHECK(sum / 8 == doctest::Approx(whole).epsilon(1e-13));
  };
  by_parts([](const Tensor& v, const Tensor& p, std::int64_t) { return z_loss(v, 1, p); }, false);
  by_parts([](const Tensor& v, const Tensor& p,
              std::int64_t s) { return aux(v, 2, 1, p, RouterScore::sigmoid, s); },
           true);
  // With the whole batch's counts the shards' global losses add up to the whole batch's loss.
  const Tensor counts = count_top_experts(x, 2, 1, pad);
  by_parts([&](const Tensor& v, const Tensor& p,
               std::int64_t) { return balance_loss(v, counts, RouterScore::softmax, 1, p); },
           false);
}

TEST_CASE("router_loss: counts skip dropped slots and are kept per sequence") {
  const Tensor experts = Tensor::of({0, 2, 2, -1, 1, 2, 7, 0}, {4, 2}, DType::i64);
  CHECK(mismatch(count_experts(experts, 3), Tensor::of({2, 1, 3}, {1, 3}, DType::i64), 0) == "");
  CHECK(mismatch(count_experts(experts, 3, 2), Tensor::of({1, 0, 2, 1, 1, 1}, {2, 3}, DType::i64),
                 0) == "");
  CHECK(count_experts(Tensor::zeros({0, 2}, DType::i64), 3).shape() == Shape{1, 3});
  CHECK(count_experts(Tensor::zeros({4, 2}, DType::i64, kMeta), 3, 2).shape() == Shape{2, 3});
}

TEST_CASE("router_loss: the number of threads changes no bit and meta gives the same shapes") {
  const test::RestoreThreads restore;
  const Tensor x = random({3000, 33}, 1, DType::f32);
  const auto f = [](const Tensor& v) {
    return add(aux(v, 2, 1, {}, RouterScore::sigmoid, 3), z_loss(v, 1));
  };
  set_num_threads(1);
  const Tensor one = f(x), g1 = gradient(f, x);
  set_num_threads(3);
  const Tensor three = f(x), g3 = gradient(f, x);
  CHECK(different_bits(one, three) == "");
  CHECK(different_bits(g1, g3) == "");
  const Tensor meta = f(Tensor::empty({6, 8}, DType::bf16, kMeta));
  CHECK(meta.shape() == Shape{});
  CHECK(meta.dtype() == DType::f32);
}

TEST_CASE("router_loss: errors name the rule") {
  const Tensor x = fixture(), counts = Tensor::zeros({1, 4}, DType::i64);
  const auto balance = [&](const Tensor& logits, const Tensor& c, const Tensor& padding = {}) {
    return error_of([&] { balance_loss(logits, c, RouterScore::softmax, 1, padding); });
  };
  CHECK(balance({}, counts) == "balance_loss: logits must be a tensor, got a null handle");
  CHECK(balance(x, {}) == "balance_loss: counts must be a tensor, got a null handle");
  CHECK(balance(x.to(DType::i64), counts) ==
        "balance_loss: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(balance(Tensor::zeros({4}), counts) ==
        "balance_loss: logits must have shape [tokens, experts], got [4]");
  CHECK(balance(Tensor::zeros({4, 1025}), counts) ==
        "balance_loss: experts must be in [1, 1024], got 1025");
  CHECK(balance(x, Tensor::zeros({4}, DType::i64)) ==
        "balance_loss: counts must have shape [sequences, 4] (experts of logits [4, 4]), got [4]");
  CHECK(balance(x, Tensor::zeros({1, 4})) == "balance_loss: counts must have dtype i64, got f32");
  CHECK(balance(x, Tensor::zeros({1, 4}, DType::i64, kMeta)) ==
        "balance_loss: counts must be on device cpu like logits, got meta");
  CHECK(balance(x, Tensor::zeros({3, 4}, DType::i64)) ==
        "balance_loss: sequences must be at least 1 and divide the number of tokens 4, got 3");
  CHECK(balance(x, counts, Tensor::zeros({3}, DType::boolean)) ==
        "balance_loss: padding must have shape [4] (tokens of logits [4, 4]), got [3]");
  CHECK(error_of([&] { z_loss(Tensor::zeros({4}), 1); }) ==
        "z_loss: logits must have shape [tokens, experts], got [4]");
  CHECK(error_of([&] { count_top_experts(x, 5); }) ==
        "count_top_experts: topk must be at most the number of experts 4, got 5");
  CHECK(error_of([&] { count_top_experts(x, 2, 0); }) ==
        "count_top_experts: sequences must be at least 1 and divide the number of tokens 4, got 0");
  CHECK(error_of([&] { count_experts({}, 2); }) ==
        "count_experts: experts must be a tensor, got a null handle");
  CHECK(error_of([&] { count_experts(counts.view({4}), 2); }) ==
        "count_experts: experts must have shape [tokens, k], got [4]");
  CHECK(error_of([&] { count_experts(x, 2); }) ==
        "count_experts: experts must have dtype i64, got f32");
  CHECK(error_of([&] { count_experts(counts, 0); }) ==
        "count_experts: count must be in [1, 1024], got 0");
  CHECK(error_of([&] { count_experts(counts, 2, 2); }) ==
        "count_experts: sequences must be at least 1 and divide the number of tokens 1, got 2");
}

}  // namespace weft::router_loss_test
