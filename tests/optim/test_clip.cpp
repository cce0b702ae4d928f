#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "weft/core/parallel.h"
#include "weft/optim/clip.h"
#include "weft/tests/support.h"

namespace weft::clip_test {

namespace {

NamedTensor parameter(const char* name, const Shape& shape, DType dtype = DType::f32) {
  Tensor p = Tensor::zeros(shape, dtype);
  p.set_requires_grad();
  return {name, p};
}

// Two parameters with the gradients (3, 0) and (0, 4, 0), whose joint norm is 5.
NamedTensors of_norm_five() {
  NamedTensors ps{parameter("a", {2}), parameter("none", {7}), parameter("b", {3})};
  ps[0].tensor.set_grad(Tensor::of({3, 0}, {2}));
  ps[2].tensor.set_grad(Tensor::of({0, 4, 0}, {3}));
  return ps;
}

}  // namespace

TEST_CASE("clip: a norm above the limit scales every gradient and returns the old norm") {
  const NamedTensors ps = of_norm_five();
  CHECK(optim::clip_grad_norm(ps, 2).item() == 5);
  CHECK(test::mismatch(ps[0].tensor.grad(), Tensor::of({1.2, 0}, {2}), 1e-6) == "");
  CHECK(test::mismatch(ps[2].tensor.grad(), Tensor::of({0, 1.6, 0}, {3}), 1e-6) == "");
  CHECK(!ps[1].tensor.grad().defined());
  CHECK(optim::clip_grad_norm(ps, 2).item() == doctest::Approx(2).epsilon(1e-6));
}

TEST_CASE("clip: a norm up to the limit changes no bit") {
  for (const double limit : {5.1, 1000.0, 0.0}) {
    const NamedTensors ps = of_norm_five();
    CHECK(optim::clip_grad_norm(ps, limit).item() == 5);
    CHECK(test::different_bits(ps[0].tensor.grad(), Tensor::of({3, 0}, {2})) == "");
    CHECK(test::different_bits(ps[2].tensor.grad(), Tensor::of({0, 4, 0}, {3})) == "");
  }
}

TEST_CASE("clip: measuring changes nothing and gives the factor") {
  const NamedTensors ps = of_norm_five();
  const optim::GradClip clip = optim::measure_clip(ps, 2);
  CHECK(clip.norm.item() == 5);
  CHECK(clip.scale.item() == doctest::Approx(2 / (5 + 1e-6)).epsilon(1e-12));
  CHECK(test::different_bits(ps[0].tensor.grad(), Tensor::of({3, 0}, {2})) == "");
  CHECK(optim::measure_clip(ps, 0).scale.item() == 1);
}

TEST_CASE("clip: a gradient that is not finite shows in the norm and prevents scaling") {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    const NamedTensors ps = of_norm_five();
    ps[2].tensor.grad().slice(0, 0, 1).fill_(bad);
    const optim::GradClip clip = optim::measure_clip(ps, 2);
    CHECK(!std::isfinite(clip.norm.item()));
    CHECK(std::isnan(clip.scale.item()));
    CHECK(!std::isfinite(optim::clip_grad_norm(ps, 2).item()));
    CHECK(test::different_bits(ps[0].tensor.grad(), Tensor::of({3, 0}, {2})) == "");
  }
}

TEST_CASE("clip: a loss that is not finite prevents scaling and a finite one changes no bit") {
  const NamedTensors ps = of_norm_five();
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    const optim::GradClip clip = optim::measure_clip(ps, 2);
    optim::require_finite(clip, Tensor::full({}, bad, DType::f32));
    CHECK(std::isnan(clip.scale.item()));
    CHECK(clip.norm.item() == 5);
  }
  const optim::GradClip clip = optim::measure_clip(ps, 2);
  const double scale = clip.scale.item();
  optim::require_finite(clip, Tensor::full({1}, -3e38, DType::f32));
  CHECK(clip.scale.item() == scale);
  optim::require_finite({}, Tensor::ones({}));
  CHECK(test::error_of([&] { optim::require_finite(clip, Tensor::ones({2})); }) ==
        "require_finite: number must have 1 element, got shape [2]");
}

TEST_CASE("clip: sums_of_squares of any tensors and clip_from their total") {
  const Tensor sums = optim::sums_of_squares(
      {Tensor::of({3, 4}, {2}), Tensor::of({12}, {1}, DType::f64), Tensor::zeros({0, 2})});
  CHECK(test::different_bits(sums, Tensor::of({25, 144, 0, 169}, {4}, DType::f64)) == "");
  const optim::GradClip clip = optim::clip_from(sums, 6.5);
  CHECK(clip.norm.item() == 13);
  CHECK(clip.scale.item() == doctest::Approx(6.5 / (13 + 1e-6)).epsilon(1e-12));
  CHECK_FALSE(optim::sums_of_squares({}).defined());
  CHECK(
      test::error_of([] { optim::sums_of_squares({Tensor::zeros({2}, DType::i32)}); }) ==
      "sums_of_squares: tensors must be f32, f64, bf16 or f16 and contiguous, got i32 with strides "
      "[1]");
  CHECK(test::error_of([&] { optim::clip_from(sums, -1); }) ==
        "clip: max_norm must be at least 0, got -1");
}

TEST_CASE("clip: squares that overflow f32 still give a norm") {
  NamedTensors ps{parameter("a", {2})};
  ps[0].tensor.set_grad(Tensor::of({3e30, 4e30}, {2}));
  CHECK(optim::clip_grad_norm(ps, 1).item() == doctest::Approx(5e30));
  CHECK(test::mismatch(ps[0].tensor.grad(), Tensor::of({0.6, 0.8}, {2}), 1e-6) == "");
}

TEST_CASE("clip: mixed dtypes, and the norm does not depend on the number of threads") {
  NamedTensors ps{parameter("a", {300, 701}), parameter("b", {90001}, DType::bf16),
                  parameter("c", {5}, DType::f64), parameter("empty", {0, 3})};
  double want = 0;
  std::uint64_t seed = 1;
  for (const NamedTensor& p : ps) {
    p.tensor.set_grad(test::random(p.tensor.shape(), seed++, p.tensor.dtype()));
    std::vector<double> g(static_cast<std::size_t>(p.tensor.numel()));
    p.tensor.grad().copy_to(g);
    for (const double v : g) want += v * v;
  }
  const test::RestoreThreads restore;
  set_num_threads(1);
  const double one = optim::measure_clip(ps, 1).norm.item();
  CHECK(one == doctest::Approx(std::sqrt(want)).epsilon(1e-12));
  for (const int n : {2, 3}) {
    set_num_threads(n);
    CHECK(optim::measure_clip(ps, 1).norm.item() == one);
  }
}

TEST_CASE("clip: main_grad takes precedence over grad") {
  NamedTensors ps = of_norm_five();
  ps[0].tensor.set_main_grad(Tensor::of({0, 0}, {2}));
  CHECK(optim::measure_clip(ps, 1).norm.item() == 4);
  CHECK(optim::gradient_of(ps[0].tensor).same(ps[0].tensor.main_grad()));
}

TEST_CASE("clip: without gradients the norm is null and clipping by value does nothing") {
  const NamedTensors ps{parameter("a", {2})};
  CHECK(!optim::measure_clip(ps, 1).norm.defined());
  CHECK(!optim::clip_grad_norm(ps, 1).defined());
  optim::clip_grad_value(ps, 1);
  CHECK(!ps[0].tensor.grad().defined());
}

TEST_CASE("clip: clipping by value limits each element") {
  NamedTensors ps{parameter("a", {5})};
  ps[0].tensor.set_grad(Tensor::of({-7, -0.5, 0, 0.25, 9}, {5}));
  optim::clip_grad_value(ps, 0.5);
  CHECK(test::different_bits(ps[0].tensor.grad(), Tensor::of({-0.5, -0.5, 0, 0.25, 0.5}, {5})) ==
        "");
}

TEST_CASE("clip: the meta device gives only shapes") {
  Tensor p = Tensor::empty({3, 4}, DType::f32, kMeta);
  p.set_requires_grad();
  p.set_grad(Tensor::empty({3, 4}, DType::f32, kMeta));
  const optim::GradClip clip = optim::measure_clip({{"p", p}}, 1);
  CHECK(clip.norm.is_meta());
  CHECK(clip.norm.numel() == 1);
  CHECK(clip.scale.is_meta());
}

TEST_CASE("clip: errors name the rule") {
  NamedTensors ps = of_norm_five();
  CHECK(test::error_of([&] { optim::clip_grad_norm(ps, -1); }) ==
        "clip: max_norm must be at least 0, got -1");
  CHECK(test::error_of([&] { optim::clip_grad_value(ps, 0); }) ==
        "clip: the limit on gradient values must be above 0, got 0");
  ps[0].tensor.set_grad(test::strided(Tensor::of({1, 2}, {2})));
  CHECK(test::error_of([&] { optim::clip_grad_norm(ps, 1); }) ==
        "grad_norm: the gradient of a must be contiguous, got strides [2]");
}

}  // namespace weft::clip_test
