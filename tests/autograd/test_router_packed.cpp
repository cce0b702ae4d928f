// Sequences of different lengths in one row: counts and balance losses are computed per sequence.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "weft/core/parallel.h"
#include "weft/nn/moe.h"
#include "weft/tests/router_support.h"

namespace weft::router_packed_test {
namespace {

using nn::Balance;
using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

const RouterScore kScores[] = {RouterScore::softmax, RouterScore::sigmoid,
                               RouterScore::sqrt_softplus};
// Empty sequences at the start, in the middle and at the end; long ones across blocks of sixteen.
const std::vector<std::int32_t> kBounds = {0, 0, 5, 6, 6, 6, 39, 41, 41};

Tensor cu_of(const std::vector<std::int32_t>& bounds) {
  return Tensor::from<std::int32_t>(bounds, {static_cast<std::int64_t>(bounds.size())});
}

Tensor packed_loss(const Tensor& x, RouterScore score, const Tensor& padding = {},
                   const std::vector<std::int32_t>& bounds = kBounds) {
  const PackedTokens packed{cu_of(bounds)};
  return balance_loss(x, count_top_experts(x, 2, 1, padding, packed), score, 0.7, padding, packed);
}

// Every third token from the second on.
Tensor some_padding(std::int64_t tokens) {
  const Tensor pad = Tensor::zeros({tokens}, DType::boolean);
  for (std::int64_t t = 1; t < tokens; t += 3) pad.data<bool>()[t] = true;
  return pad;
}

// Calls run(first, tokens) for every sequence that has tokens.
template <class F>
void each_sequence(F run) {
  for (std::size_t i = 0; i + 1 < kBounds.size(); ++i)
    if (kBounds[i + 1] > kBounds[i]) run(kBounds[i], kBounds[i + 1] - kBounds[i]);
}

// The definition for one sequence, times its unpadded tokens n: sum over e of E / (2 n) C_e sum_t
// s_te, where C_e counts how often e is among a token's two best.
double times_tokens(const Tensor& x, RouterScore score, const Tensor& padding) {
  const std::int64_t T = x.dim(0), E = x.dim(1);
  std::vector<double> C(static_cast<std::size_t>(E)), P(C);
  double n = 0;
  for (std::int64_t t = 0; t < T; ++t) {
    if (padding.defined() && padding.data<bool>()[t]) continue;
    const double* row = x.data<double>() + t * E;
    std::vector<double> s(row, row + E);
    for (std::size_t e = 0; e < s.size(); ++e) {
      int above = 0;
      for (const double other : s) above += other > row[e];
      C[e] += above < 2;
    }
    double sum = 0;
    for (double& v : s) {
      v = score == RouterScore::softmax   ? std::exp(v)
          : score == RouterScore::sigmoid ? 1 / (1 + std::exp(-v))
                                          : std::sqrt(std::log1p(std::exp(v)));
      sum += v;
    }
    for (std::size_t e = 0; e < s.size(); ++e) P[e] += s[e] / sum;
    ++n;
  }
  double total = 0;
  for (std::size_t e = 0; e < C.size(); ++e) total += C[e] * P[e];
  return n > 0 ? static_cast<double>(E) * total / (2 * n) : 0;
}

}  // namespace

TEST_CASE("router_packed: counts per sequence with empty sequences and dropped slots") {
  const Tensor experts = Tensor::of({0, 2, 2, -1, 1, 2, 7, 0}, {4, 2}, DType::i64);
  const auto counts = [&](const std::vector<std::int32_t>& bounds) {
    return count_experts(experts, 3, 1, {cu_of(bounds)});
  };
  CHECK(different_bits(
            counts({0, 0, 1, 1, 4, 4}),
            Tensor::of({0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 1, 2, 0, 0, 0}, {5, 3}, DType::i64)) == "");
  CHECK(different_bits(counts({0, 2, 4}), count_experts(experts, 3, 2)) == "");
  CHECK(count_experts(Tensor::zeros({0, 2}, DType::i64), 3, 1, {cu_of({0})}).shape() ==
        Shape{0, 3});
  CHECK(count_experts(Tensor::zeros({4, 2}, DType::i64, kMeta), 3, 1, {cu_of({0, 1, 4}).to(kMeta)})
            .shape() == Shape{2, 3});
}

TEST_CASE("router_packed: loss and gradient are the token-weighted mean of the sequences") {
  const Tensor x = random({41, 9}, 3);
  for (const RouterScore score : kScores)
    for (const Tensor& padding : {Tensor(), some_padding(41)}) {
      double sum = 0, tokens = 0;
      each_sequence([&](std::int64_t first, std::int64_t n) {
        const Tensor pad = padding.defined() ? padding.narrow(0, first, n) : padding;
        sum += times_tokens(x.narrow(0, first, n), score, pad);
        for (std::int64_t t = 0; t < n; ++t) tokens += !(pad.defined() && pad.data<bool>()[t]);
      });
      CHECK(packed_loss(x, score, padding).item() ==
            doctest::Approx(0.7 * sum / tokens).epsilon(1e-13).scale(0));
      // Sensitivity check: the row taken as one sequence has another loss.
      CHECK(std::abs(packed_loss(x, score, padding, {0, 41}).item() - 0.7 * sum / tokens) > 1e-3);
      const auto f = [&](const TensorList& in) { return packed_loss(in[0], score, padding); };
      CHECK(gradcheck(f, {x}, {.tolerance = 1e-8}) == "");
    }
}

TEST_CASE("router_packed: sequences of equal length give the bits of the unpacked form") {
  const Tensor x = random({42, 33}, 3, DType::f32);
  for (const RouterScore score : kScores) {
    const auto gradient = [&](auto loss) {
      Tensor leaf = x.detach().set_requires_grad();
      Tape tape;
      const Tensor l = loss(leaf);
      return TensorList{l.detach(), tape.gradients(l, {leaf})[0]};
    };
    const TensorList want = gradient(
        [&](const Tensor& v) { return balance_loss(v, count_top_experts(v, 2, 3), score, 0.7); });
    const TensorList got = gradient([&](const Tensor& v) {
      return packed_loss(v, score, {}, {0, 14, 28, 42});
    });
    for (int i = 0; i < 2; ++i) CHECK(different_bits(got[i], want[i]) == "");
    const test::RestoreThreads restore;
    set_num_threads(3);
    const Tensor three = packed_loss(x, score, {}, {0, 1, 30, 42});
    set_num_threads(1);
    CHECK(different_bits(packed_loss(x, score, {}, {0, 1, 30, 42}), three) == "");
  }
}

TEST_CASE("router_packed: zero tokens, only padding, narrow dtypes and meta device") {
  CHECK(packed_loss(Tensor::zeros({0, 4}), RouterScore::softmax, {}, {0}).item() == 0);
  CHECK(packed_loss(Tensor::zeros({0, 4}), RouterScore::softmax, {}, {0, 0}).item() == 0);
  const Tensor x = random({41, 9}, 3);
  CHECK(packed_loss(x, RouterScore::sigmoid, Tensor::ones({41}, DType::boolean)).item() == 0);
  const Tensor narrow = x.to(DType::bf16);
  CHECK(packed_loss(narrow, RouterScore::sigmoid).item() ==
        doctest::Approx(packed_loss(narrow.to(DType::f64), RouterScore::sigmoid).item())
            .epsilon(1e-6));
  const Tensor meta = balance_loss(x.to(kMeta), Tensor::zeros({2, 9}, DType::i64, kMeta),
                                   RouterScore::softmax, 1, {}, {cu_of({0, 1, 41}).to(kMeta)});
  CHECK(meta.shape() == Shape{});
}

TEST_CASE("router_packed: errors name the rule") {
  const Tensor x = random({6, 4}, 3), counts = Tensor::zeros({2, 4}, DType::i64);
  const auto error = [&](const Tensor& cu) {
    return error_of([&] { balance_loss(x, counts, RouterScore::softmax, 1, {}, {cu}); });
  };
  CHECK(error(cu_of({0, 2, 6})) == "no error");
  CHECK(error(cu_of({0, 6})) ==
        "balance_loss: counts must have a row for each of the 1 packed sequences, got 2");
  CHECK(error(cu_of({0, 2, 5})) ==
        "balance_loss: cu_seqlens must end at the number of tokens 6, got 5");
  CHECK(error(cu_of({0, 7, 6})) == "balance_loss: cu_seqlens must not decrease, got 6 after 7");
  CHECK(error(cu_of({1, 2, 6})) == "balance_loss: cu_seqlens must start at 0, got 1");
  CHECK(error(Tensor::zeros({3}, DType::i64)) ==
        "balance_loss: cu_seqlens must be i32 with shape [n + 1], got i64 [3]");
  CHECK(error_of([&] {
          count_experts(counts, 2, 1, {cu_of({0, 1})});
        }) == "count_experts: cu_seqlens must end at the number of tokens 2, got 1");
  CHECK(error_of([&] {
          count_top_experts(x, 2, 1, {}, {cu_of({0, 1})});
        }) == "count_experts: cu_seqlens must end at the number of tokens 6, got 1");
}

TEST_CASE("router_packed: a layer gives a packed row the results of its separate sequences") {
  for (const bool biased : {false, true}) {
    nn::MoeOptions o{.experts = 4, .ffn = 5};
    o.router.route = {.topk = 2, .score = RouterScore::sigmoid};
    o.router.expert_bias = biased;
    o.router.balance = {{Balance::sequence, 0.5}};
    const nn::DeviceScope f64(kCpu, DType::f64);
    nn::MoE layer(6, o);
    nn::init(layer, 4);
    layer.router.weight.mul_(40);
    const Tensor x = random({1, 41, 6}, 5);
    const nn::Packing packing = nn::Packing::of(kBounds, 41);
    REQUIRE(packing.checked());

    TensorList wanted{layer.router.weight};
    Tape whole;
    const nn::MoeOutput all = layer(x, {.packing = packing});
    const Tensor dall = whole.gradients(all.loss, wanted)[0];
    double loss = 0;
    Tensor gradient = Tensor::zeros(dall.shape(), DType::f64);
    each_sequence([&](std::int64_t first, std::int64_t n) {
      Tape tape;
      const nn::MoeOutput one = layer(x.narrow(1, first, n));
      const double share = static_cast<double>(n) / 41;
      loss += one.loss.item() * share;
      gradient.add_(tape.gradients(one.loss, wanted)[0], share);
      CHECK(mismatch(contiguous(all.y.narrow(1, first, n)).detach(), one.y.detach(), 1e-12) == "");
    });
    CHECK(all.loss.item() == doctest::Approx(loss).epsilon(1e-12).scale(0));
    CHECK(mismatch(dall, gradient, 1e-12) == "");
  }
}

TEST_CASE("router_packed: the gradients of ranks that share a row add up to the whole") {
  nn::RouterConfig c{.route = {.topk = 2}, .balance = {{Balance::sequence, 0.5}}, .z_loss = 0.1};
  c.dtype = DType::f64;
  nn::Router router(5, 6, c);
  nn::init(router, 4);
  router.weight.mul_(40);
  const Tensor x = random({42, 6}, 5), padding = some_padding(42);
  padding.narrow(0, 30, 12).fill_(1);  // more padding on the second rank
  const PackedTokens packed{cu_of({0, 3, 3, 19, 40, 42}), true};
  nn::RouterInput row{.padding = padding, .packed = packed};

  const Tensor all = count_top_experts(x.matmul(router.weight.detach().t()), 2, 1, padding, packed);
  Tensor sum = Tensor::zeros(all.shape(), DType::i64);
  // A known sum over the ranks; each rank adds its own counts to `sum`.
  change_shard(router, [&](nn::Shard& s) {
    s.sum_batch = [&](const Tensor& counts) {
      sum.add_(counts);
      counts.copy_(all);
    };
    s.tokens = {.rank = 0, .ranks = 2};
  });
  Tensor gradient = Tensor::zeros(router.weight.shape(), DType::f64);
  for (const std::int64_t rank : {0, 1}) {
    row.part = {1, 42, 21 * rank, 21};
    Tape tape;
    const nn::Routed r = router(x.narrow(0, 21 * rank, 21), row);
    gradient.add_(tape.gradients(r.loss, {router.weight})[0]);
  }
  CHECK(different_bits(sum, all) == "");
  Tape tape;
  router.shard = nullptr;
  row.part = {};
  const Tensor want = tape.gradients(router(x, row).loss, {router.weight})[0];
  CHECK(mismatch(gradient, want, 1e-12) == "");
}

}  // namespace weft::router_packed_test
