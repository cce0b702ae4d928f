#include <doctest/doctest.h>

#include "weft/autograd/indexing.h"
#include "weft/autograd/linear_cross_entropy.h"
#include "weft/autograd/recompute.h"
#include "weft/distributed/comm_ops.h"
#include "weft/distributed/vocab.h"
#include "weft/tests/cross_entropy_oracle.h"
#include "weft/tests/ranks.h"

namespace weft::distributed::vocab_test {
namespace {

using test::differentiate;
using test::distributed_test;
using test::ids;
using test::kReductions;
using test::Outcome;

constexpr std::int64_t kRows = 7, kWidth = 5;

Tensor own_rows(const Tensor& weight, const World& w) {
  const VocabRange r = vocab_range(weight.dim(0), w.rank(), w.size());
  return weight.narrow(0, r.first, r.count).contiguous();
}

// Checks that all ranks have the same bits.
void check_alike(const Tensor& t, World& w) {
  const Tensor all = Tensor::empty({w.size() * t.numel()}, t.dtype());
  w.all().all_gather(all, t.reshape({t.numel()}).contiguous()).wait();
  for (int r = 0; r < w.size(); ++r)
    CHECK(test::different_bits(all.narrow(0, r * t.numel(), t.numel()).contiguous(),
                               t.reshape({t.numel()})) == "");
}

// The first row's cotangent is exactly 0.
Tensor cotangent(Reduction reduction, DType real) {
  if (reduction != Reduction::none) return Tensor::full({}, -0.37, real);
  const Tensor dy = test::random({kRows}, 3).to(real);
  dy.narrow(0, 0, 1).fill_(0);
  return dy;
}

const std::vector<std::vector<std::int64_t>> kTargets = {
    {0, 9, 3, 2, 2, 5, 7},
    {0, 9, -100, 2, 2, 5, -100},
    {-100, 1, 8, 9, 4, 4, 0},
    {-100, -100, -100, -100, -100, -100, -100}};

}  // namespace

TEST_CASE("vocab: ranges are equal and the last ones short or empty") {
  const auto counts = [](std::int64_t vocab, int ranks) {
    std::vector<std::int64_t> out;
    std::int64_t next = 0;
    for (int r = 0; r < ranks; ++r) {
      CHECK(vocab_range(vocab, r, ranks).first == next);
      out.push_back(vocab_range(vocab, r, ranks).count);
      next += out.back();
    }
    CHECK(next == vocab);
    return out;
  };
  CHECK(counts(10, 4) == std::vector<std::int64_t>{3, 3, 3, 1});
  CHECK(counts(5, 4) == std::vector<std::int64_t>{2, 2, 1, 0});
  CHECK(counts(257, 2) == std::vector<std::int64_t>{129, 128});
  CHECK(counts(8, 1) == std::vector<std::int64_t>{8});
}

TEST_CASE("vocab: loss and gradients equal the reference for indivisible class counts") {
  distributed_test({1, 2, 4}, [](World& w) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (const Reduction reduction : kReductions)
        for (const double smoothing : {0.0, 0.1})
          for (const auto& t : kTargets)
            for (const std::int64_t chunk : {0, 3}) {
              const CrossEntropyOptions o{.reduction = reduction, .label_smoothing = smoothing};
              const Tensor x = test::random({kRows, kWidth}, 1, dtype);
              const Tensor weight = test::random({10, kWidth}, 2, dtype);
              const DType real = dtype == DType::f64 ? DType::f64 : DType::f32;
              const Tensor dy = cotangent(reduction, real), targets = ids(t, {kRows});
              const Outcome got =
                  differentiate(x, own_rows(weight, w), dy, [&](const Tensor& a, const Tensor& b) {
                    return detail::vocab_cross_entropy(copy_to_group(a, w.all()), b, targets, 10,
                                                       w.all(), o, chunk);
                  });
              // In bf16 the loss sees rounded logits.
              const Tensor logits = x.matmul(weight.t());
              const test::Oracle want = test::oracle(logits, t, o, test::values(dy));
              const Tensor dlogits = Tensor::from(std::span<const double>(want.grad), {kRows, 10});
              const double eps = real == DType::f64 ? 1e-13 : 1e-6;
              CHECK(test::far(got.loss, want.loss, 4 * eps, 4 * eps) == "");
              const double tol = 4 * test::tolerance(dtype);
              CHECK(test::mismatch(got.dx, dlogits.matmul(weight.to(DType::f64)), tol) == "");
              CHECK(test::mismatch(got.dw, own_rows(dlogits.t().matmul(x.to(DType::f64)), w),
                                   tol) == "");
              check_alike(got.loss, w);
              check_alike(got.dx, w);
            }
  });
}

TEST_CASE("vocab: gradients match finite differences on 3 rows of 7 classes") {
  distributed_test({1, 2, 4}, [](World& w) {
    const Tensor weight = own_rows(test::random({7, kWidth}, 2), w);
    for (const Reduction reduction : kReductions)
      for (const double smoothing : {0.0, 0.1}) {
        const auto f = [&](const TensorList& in) {
          const Tensor loss = detail::vocab_cross_entropy(
              copy_to_group(in[0], w.all()), weight, ids({6, -100, 2}, {3}), 7, w.all(),
              {.reduction = reduction, .label_smoothing = smoothing}, 2);
          return mul(loss, loss);
        };
        CHECK(gradcheck(f, {test::random({3, kWidth}, 1)}) == "");
      }
  });
}

TEST_CASE("vocab: golden values of 10 classes over 4 ranks and of label smoothing") {
  distributed_test({4}, [](World& w) {
    // One row of logits 0, 1, ..., 9: log(sum exp) = 9 + log((1 - e^-10) / (1 - e^-1)).
    const Tensor x = Tensor::ones({1, 1}, DType::f64);
    const Tensor weight = Tensor::arange(0, 10, 1, DType::f64).view({10, 1});
    const double log_sum = 9 + std::log((1 - std::exp(-10.0)) / (1 - std::exp(-1.0)));
    const auto loss = [&](double smoothing) {
      return vocab_cross_entropy(x, own_rows(weight, w), ids({4}, {1}), 10, w.all(),
                                 {.label_smoothing = smoothing})
          .item();
    };
    CHECK(loss(0) == doctest::Approx(log_sum - 4).epsilon(1e-14));
    CHECK(loss(0.2) == doctest::Approx(log_sum - 0.8 * 4 - 0.2 * 4.5).epsilon(1e-14));
  });
}

TEST_CASE("vocab: one all-gather per chunk of rows in forward and none in backward") {
  distributed_test({4}, [](World& w) {
    const Tensor x = test::random({kRows, kWidth}, 1), weight = test::random({5, kWidth}, 2);
    const std::int64_t before = w.all().calls();
    const auto f = [&](const Tensor& a, const Tensor& b) {
      const Tensor loss = detail::vocab_cross_entropy(a, b, ids({0, 4, 1, 2, 2, 3, -100}, {kRows}),
                                                      5, w.all(), {}, 3);
      CHECK(w.all().calls() == before + 3);
      return loss;
    };
    const Outcome got = differentiate(x, own_rows(weight, w), {}, f);
    CHECK(w.all().calls() == before + 3);
    CHECK(got.dw.shape() == own_rows(weight, w).shape());
    if (w.rank() == 3) CHECK(test::different_bits(got.dx, zeros_like(x)) == "");
  });
}

TEST_CASE("vocab: hits, rows of -inf and zero rows") {
  distributed_test({1, 2, 4}, [](World& w) {
    const Tensor x = test::random({kRows, kWidth}, 11), weight = test::random({10, kWidth}, 12);
    const Tensor best = x.matmul(weight.t()).argmax(1);
    const Tensor targets = best.clone();
    targets.narrow(0, 2, 1).fill_(-100);
    targets.narrow(0, 4, 1).fill_(static_cast<double>((best.select(0, 4).item_int() + 1) % 10));
    CrossEntropyOptions o;
    o.hits = Tensor::empty({kRows}, DType::boolean);
    static_cast<void>(vocab_cross_entropy(x, own_rows(weight, w), targets, 10, w.all(), o));
    CHECK(test::values(o.hits) == std::vector<double>{1, 1, 0, 1, 0, 1, 1});

    // No class has any probability: loss +inf, no gradient.
    const Tensor down = Tensor::full({10, 1}, -test::kInf, DType::f64);
    const Tensor one = Tensor::ones({2, 1}, DType::f64);
    const Outcome none =
        differentiate(one, own_rows(down, w), {}, [&](const Tensor& a, const Tensor& b) {
          return vocab_cross_entropy(a, b, ids({1, 2}, {2}), 10, w.all());
        });
    CHECK(none.loss.item() == test::kInf);
    CHECK(test::mismatch(none.dw, zeros_like(none.dw), 0) == "");

    const Tensor empty = Tensor::empty({0, kWidth}, DType::f64);
    const Outcome nothing =
        differentiate(empty, own_rows(weight, w), {}, [&](const Tensor& a, const Tensor& b) {
          return vocab_cross_entropy(a, b, ids({}, {0}), 10, w.all());
        });
    CHECK(nothing.loss.item() == 0);
    CHECK(test::different_bits(nothing.dw, zeros_like(nothing.dw)) == "");
  });
}

TEST_CASE("vocab: the sum of the embedding shards equals the whole bit by bit") {
  distributed_test({1, 2, 4}, [](World& w) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
      for (const std::int64_t vocab : {10, 5, 3}) {
        const Tensor weight = test::random({vocab, kWidth}, 2, dtype);
        const Tensor tokens = ids({0, 2, 1, 2, vocab - 1, 0}, {2, 3}, DType::i32);
        const Tensor got = reduce_from_group(
            vocab_embedding(own_rows(weight, w), tokens, vocab, w.all()), w.all());
        CHECK(test::different_bits(got, embedding(weight, tokens)) == "");
        // The gradient with respect to each rank's rows.
        const auto gradient = [&](const Tensor& of, auto&& f) {
          Tensor leaf = of.detach();
          leaf.set_requires_grad();
          Tape tape;
          return tape.gradients(f(leaf), {leaf}, test::random({2, 3, kWidth}, 5, dtype))[0];
        };
        const Tensor want = gradient(weight, [&](const Tensor& t) { return embedding(t, tokens); });
        const Tensor dw = gradient(own_rows(weight, w), [&](const Tensor& t) {
          return reduce_from_group(vocab_embedding(t, tokens, vocab, w.all()), w.all());
        });
        CHECK(test::different_bits(dw, own_rows(want, w)) == "");
      }
  });
}

TEST_CASE("vocab: a tied weight and a head in a recomputed region") {
  distributed_test({2}, [](World& w) {
    ProcessGroup& g = w.all();
    const Tensor weight = test::random({5, 3}, 1);
    const Tensor tokens = ids({0, 2, 2, 4}, {4}), targets = ids({3, 0, 1, 4}, {4});
    const auto plain = [&](const Tensor& t) {
      return linear_cross_entropy(embedding(t, tokens), t, targets);
    };
    const auto cut = [&](const Tensor& t) {
      const Tensor x = reduce_from_group(vocab_embedding(t, tokens, 5, g), g);
      return vocab_cross_entropy(copy_to_group(x, g), t, targets, 5, g);
    };
    const auto gradient = [&](const Tensor& of, auto&& f) {
      Tensor leaf = of.detach();
      leaf.set_requires_grad();
      Tape tape;
      return tape.gradients(f(leaf), {leaf})[0];
    };
    const Tensor want = own_rows(gradient(weight, plain), w);
    const Tensor got = gradient(own_rows(weight, w), cut);
    CHECK(test::mismatch(got, want, 1e-13) == "");
    Tensor leaf = own_rows(weight, w);
    leaf.set_requires_grad();
    Tape tape;
    recompute(cut, leaf).backward();
    CHECK(test::different_bits(leaf.grad(), got) == "");
  });
}

TEST_CASE("vocab: errors name the rule and the meta device gives shapes") {
  distributed_test({2}, [](World& w) {
    const Tensor x = Tensor::zeros({2, 3}), weight = Tensor::zeros({3, 3});
    const auto error = [&](auto&& f) { return test::error_of(f); };
    CHECK(error([&] {
            vocab_cross_entropy(x, weight, ids({0, 1}, {2}), 10, w.all());
          }) ==
          message("vocab_cross_entropy: weight must have 5 rows on rank {} of 2 (vocabulary 10), "
                  "got [3, 3]",
                  w.rank()));
    CHECK(error([&] {
            vocab_embedding(weight, ids({0, 1}, {2}), 10, w.all());
          }) ==
          message("vocab_embedding: weight must have 5 rows on rank {} of 2 (vocabulary 10), got "
                  "[3, 3]",
                  w.rank()));
    CHECK(error([&] {
            vocab_embedding(weight, ids({0, 6}, {2}), 6, w.all());
          }) == "embedding: ids must be in [0, 6), got 6");
    CHECK(error([&] { vocab_embedding(weight, Tensor::zeros({2}), 6, w.all()); }) ==
          "embedding: ids must have dtype i32 or i64, got f32");
    CHECK(error([&] {
            vocab_cross_entropy(x, weight, ids({0, 6}, {2}), 6, w.all());
          }) == "linear_cross_entropy: target must be in [0, 6) or ignore_index -100, got 6");
    const Tensor mx = Tensor::empty({2, 3}, DType::bf16, kMeta),
                 mw = Tensor::empty({3, 3}, DType::bf16, kMeta),
                 mt = Tensor::empty({2}, DType::i64, kMeta);
    CHECK(vocab_cross_entropy(mx, mw, mt, 6, w.all()).dtype() == DType::f32);
    CHECK(vocab_embedding(mw, mt, 6, w.all()).shape() == Shape{2, 3});
  });
}

}  // namespace weft::distributed::vocab_test
