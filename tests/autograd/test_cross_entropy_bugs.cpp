#include <doctest/doctest.h>

#include "weft/tests/cross_entropy_oracle.h"

// One test for each defect found in a well-known fused cross entropy.
namespace weft::test::cross_entropy_bugs_test {

TEST_CASE("upstream bug: rows with ignore_index counted") {
  const Tensor x = test::random({3, 5}, 1);
  const Result r = run(x, ids({-100, 2, -100}, {3}), {.reduction = Reduction::sum});
  const Result alone = run(x.slice(0, 1, 2), ids({2}, {1}), {.reduction = Reduction::sum});
  CHECK(mismatch(r.loss, alone.loss, 0) == "");
  CHECK(mismatch(r.grad.slice(0, 1, 2), alone.grad, 0) == "");
  CHECK(mismatch(r.grad.select(0, 0), Tensor::zeros({5}, DType::f64), 0) == "");
  CHECK(mismatch(r.grad.select(0, 2), Tensor::zeros({5}, DType::f64), 0) == "");
  const Result other =
      run(x, ids({3, 2, 3}, {3}), {.reduction = Reduction::sum, .ignore_index = 3});
  CHECK(mismatch(other.grad, r.grad, 0) == "");
}

TEST_CASE("upstream bug: gradient without reduction divided by the number of rows") {
  const Tensor x = test::random({4, 3}, 2);
  const std::vector<std::int64_t> t = {0, 1, 2, 0};
  const Result all =
      run(x, ids(t, {4}), {.reduction = Reduction::none}, Tensor::ones({4}, DType::f64));
  for (int r = 0; r < 4; ++r) {
    const Result one = run(x.slice(0, r, r + 1), ids({t[static_cast<std::size_t>(r)]}, {1}),
                           {.reduction = Reduction::none}, Tensor::ones({1}, DType::f64));
    CHECK(mismatch(all.grad.slice(0, r, r + 1), one.grad, 0) == "");
  }
}

TEST_CASE("upstream bug: backward read values on the host") {
  // The meta device has no values: reading one throws.
  Tensor x = Tensor::empty({4, 3}, DType::bf16, kMeta);
  x.set_requires_grad();
  const Tensor t = Tensor::empty({4}, DType::i64, kMeta);
  for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    Tape tape;
    const Tensor loss = cross_entropy(x, t, {.reduction = reduction, .label_smoothing = 0.1});
    CHECK(loss.shape() == (reduction == Reduction::none ? Shape{4} : Shape{}));
    CHECK(loss.dtype() == DType::f32);
    const TensorList g = tape.gradients(loss, {x}, Tensor::empty(loss.shape(), DType::f32, kMeta));
    CHECK(g[0].is_meta());
    CHECK(g[0].shape() == x.shape());
    CHECK(g[0].dtype() == DType::bf16);
  }
}

TEST_CASE("upstream bug: the first row's dy was used for all rows") {
  const Tensor x = test::random({3, 5}, 4);
  check_against_oracle(x, {1, 2, 3}, {.reduction = Reduction::none}, {0, 1, -3});
  const Result r = run(x, ids({1, 2, 3}, {3}), {.reduction = Reduction::none},
                       Tensor::of({0, 1, 1}, {3}, DType::f64));
  CHECK(mismatch(r.grad.select(0, 0), Tensor::zeros({5}, DType::f64), 0) == "");
  CHECK(mismatch(r.grad, Tensor::zeros({3, 5}, DType::f64), 1e-3) != "");
}

TEST_CASE("upstream bug: a strided dy was read wrongly") {
  const Tensor x = test::random({2, 3, 5}, 6);
  const Tensor t = ids({0, 1, 2, 3, 4, 0}, {2, 3});
  const Tensor dy = test::random({2, 3}, 7);
  const CrossEntropyOptions o = {.reduction = Reduction::none};
  const Result plain = run(x, t, o, dy);
  CHECK(mismatch(run(x, t, o, test::strided(dy)).grad, plain.grad, 0) == "");
  const Tensor turned = dy.transpose(0, 1).contiguous().transpose(0, 1);
  REQUIRE_FALSE(turned.is_contiguous());
  CHECK(mismatch(run(x, t, o, turned).grad, plain.grad, 0) == "");
  const Tensor same = Tensor::full({1, 1}, 2, DType::f64).expand({2, 3});  // strides 0
  CHECK(mismatch(run(x, t, o, same).grad, run(x, t, o, Tensor::full({2, 3}, 2, DType::f64)).grad,
                 0) == "");
}

TEST_CASE("upstream bug: mean divided by the number of all rows") {
  const Tensor x = test::random({8, 5}, 8);
  const Result r = run(x, ids({1, 2, -100, -100, -100, -100, -100, -100}, {8}), {});
  const Result two = run(x.slice(0, 0, 2), ids({1, 2}, {2}), {});
  CHECK(mismatch(r.loss, two.loss, 0) == "");
  CHECK(mismatch(r.grad.slice(0, 0, 2), two.grad, 0) == "");
}

TEST_CASE("upstream bug: transposed logits gave wrong losses") {
  const Tensor sbv = test::random({3, 2, 5}, 9);
  const Tensor t = ids({0, 1, 2, 3, 4, 0}, {2, 3});
  const Tensor bsv = sbv.transpose(0, 1);
  REQUIRE_FALSE(bsv.is_contiguous());
  const CrossEntropyOptions o = {.reduction = Reduction::none};
  const Tensor dy = test::random({2, 3}, 10);
  const Result want = run(bsv.contiguous(), t, o, dy);
  const Result got = run(bsv, t, o, dy);
  CHECK(mismatch(got.loss, want.loss, 0) == "");
  CHECK(mismatch(got.grad, want.grad, 0) == "");
  const Result gaps = run(test::strided(bsv), t, o, dy);
  CHECK(mismatch(gaps.loss, want.loss, 0) == "");
  CHECK(mismatch(gaps.grad, want.grad, 0) == "");
  // Targets with their own strides.
  const Tensor turned = t.transpose(0, 1).contiguous().transpose(0, 1);
  CHECK(mismatch(run(bsv, turned, o, dy).loss, want.loss, 0) == "");
}

TEST_CASE("upstream bug: the bf16 gradient was rounded twice") {
  // The target's p is 1 - 1e-3: the gradient is -1e-3, and bf16 arithmetic on p would give 0.
  const double gap = std::log(999.0);
  const Tensor x = Tensor::of({gap, 0}, {1, 2}).to(DType::bf16);
  const Tensor before = x.clone();
  const std::vector<double> logits = values(x);
  const double p = 1 / (1 + std::exp(logits[1] - logits[0]));
  const Tensor dy = Tensor::of({0.3}, {1});
  const Result r = run(x, ids({0}, {1}), {.reduction = Reduction::none}, dy);
  const bf16 want(static_cast<float>(static_cast<double>(0.3f) * (p - 1)));
  CHECK(values(r.grad)[0] == static_cast<double>(static_cast<float>(want)));
  CHECK(values(r.grad)[1] == -values(r.grad)[0]);
  CHECK(mismatch(x, before, 0) == "");
  // Each of these scales is applied before the only rounding.
  const Tensor many = (test::random({4, 64}, 11) * 3.0).to(DType::bf16);
  const std::vector<std::int64_t> t = {3, 60, 0, 31};
  const std::vector<double> scales = {0.01, 0.03, 0.1, 0.7};
  const CrossEntropyOptions o = {.reduction = Reduction::none};
  const Tensor d = Tensor::from(std::span<const double>(scales), {4}).to(DType::f32);
  const Result got = run(many, ids(t, {4}), o, d);
  const Oracle exact = oracle(many, t, o, values(d));
  const std::vector<double> g = values(got.grad);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double half_ulp = std::exp2(std::floor(std::log2(std::abs(exact.grad[i]))) - 8);
    CHECK(std::abs(g[i] - exact.grad[i]) <= half_ulp * 1.001);
  }
}

}  // namespace weft::test::cross_entropy_bugs_test
