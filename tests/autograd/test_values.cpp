#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/values.h"
#include "weft/tests/support.h"

namespace weft::values_test {
using test::error_of;

TEST_CASE("values: equal compares shape, dtype and every value") {
  for (int i = 0; i < kDTypes; ++i) {
    const auto t = static_cast<DType>(i);
    CAPTURE(std::string(name(t)));
    const Tensor a = Tensor::of({1, 0, 1}, {3}, t);
    CHECK(equal(a, a.clone()));
    CHECK(equal(a, test::strided(a)));
    CHECK_FALSE(equal(a, Tensor::of({1, 1, 1}, {3}, t)));
    CHECK_FALSE(equal(a, a.view({1, 3})));
  }
  const Tensor one = Tensor::ones({2}), nan = Tensor::full({2}, NAN);
  CHECK_FALSE(equal(one, one.to(DType::f64)));
  CHECK_FALSE(equal(nan, nan));
  CHECK(equal(Tensor::empty({0}), Tensor::empty({0})));
  const Tensor big = Tensor::full({1}, 0x1p53, DType::i64);
  CHECK_FALSE(equal(big, big + 1));
}

TEST_CASE("values: allclose has a relative and an absolute bound") {
  const Tensor a = Tensor::of({1000, 1e-9, INFINITY}, {3}, DType::f64);
  CHECK(allclose(a, Tensor::of({1000.009, 0, INFINITY}, {3}, DType::f64)));
  CHECK_FALSE(allclose(a, Tensor::of({1000.02, 0, INFINITY}, {3}, DType::f64)));
  CHECK_FALSE(allclose(a, Tensor::of({1000, 1e-7, INFINITY}, {3}, DType::f64)));
  CHECK_FALSE(allclose(a, Tensor::of({1000, 0, -INFINITY}, {3}, DType::f64)));
  CHECK(allclose(a, Tensor::of({1100, 0, INFINITY}, {3}, DType::f64), 0.1));
  CHECK(allclose(Tensor::ones({2, 3}), Tensor::ones({3}, DType::i64)));
  CHECK_FALSE(allclose(Tensor::full({1}, NAN), Tensor::full({1}, NAN)));
  CHECK(allclose(Tensor::empty({0}), Tensor::empty({0})));
}

TEST_CASE("values: to_vector copies in row-major order, converted") {
  const Tensor x = Tensor::of({{1, 2}, {3, 4}}, DType::bf16).t();
  CHECK(to_vector(x) == std::vector<double>{1, 3, 2, 4});
  CHECK(to_vector<float>(x) == std::vector<float>{1, 3, 2, 4});
  CHECK(to_vector<std::int64_t>(x) == std::vector<std::int64_t>{1, 3, 2, 4});
  CHECK(to_vector<float>(Tensor::empty({0})).empty());
  Tensor w = Tensor::ones({2}).set_requires_grad();
  Tape tape;
  CHECK(to_vector(w * 2) == std::vector<double>{2, 2});
}

TEST_CASE("values: tensors of vectors and of nested lists") {
  const std::vector<float> v{1, 2, 3, 4};
  CHECK(equal(Tensor::from(v), Tensor::of({1, 2, 3, 4})));
  CHECK(equal(Tensor::from(v, {2, 2}), Tensor::of({{1, 2}, {3, 4}})));
  CHECK(Tensor::from(std::array<std::int32_t, 2>{5, 6}).dtype() == DType::i32);
  CHECK(Tensor::of({1, 2, 3}, DType::i64).shape() == Shape{3});
  CHECK(Tensor::of({{1, 2, 3}, {4, 5, 6}}).shape() == Shape{2, 3});
  CHECK(equal(Tensor::of({{1}, {2}}), Tensor::of({1, 2}, {2, 1})));
  CHECK(Tensor::of({{1, 2}}, DType::f64).shape() == Shape{1, 2});
  CHECK(Tensor::of({{5}}).shape() == Shape{1, 1});
  CHECK(error_of([] { Tensor::of({{1, 2}, {3}}); }) == "of: every row must have 2 values, got 1");
  CHECK(error_of([] {
          Tensor::of({{1, 0.5}, {3, 4}}, DType::i32);
        }) == "of: the number must be whole for a tensor of i32, got 0.5");
}

TEST_CASE("values: linspace reaches both ends exactly") {
  CHECK(equal(Tensor::linspace(0, 1, 5), Tensor::of({0, 0.25, 0.5, 0.75, 1})));
  for (const std::int64_t n : {2, 3, 38}) {
    const Tensor x = Tensor::linspace(0.1, 1.3, n, DType::f64);
    CHECK(x[0].item() == 0.1);
    CHECK(x[-1].item() == 1.3);
  }
  CHECK(Tensor::linspace(3, 4, 1).item() == 3);
  CHECK(Tensor::linspace(3, 4, 0).numel() == 0);
  CHECK(Tensor::linspace(0, 1, 3, DType::f32, kMeta).is_meta());
  CHECK(error_of([] { Tensor::linspace(0, 1, -1); }) == "linspace: n must be at least 0, got -1");
  CHECK(error_of([] { Tensor::linspace(0, 1, 2, DType::i32); }) ==
        "linspace: dtype must be one of f32, f64, bf16, f16, got i32");
}

TEST_CASE("values: errors name the rule and the value") {
  const Tensor x = Tensor::ones({2}), none;
  CHECK(error_of([&] { equal(x, none); }) == "equal: b must be a tensor, got a null handle");
  CHECK(error_of([&] { allclose(none, x); }) == "allclose: a must be a tensor, got a null handle");
  CHECK(error_of([&] { equal(x, x.to(kMeta)); }) ==
        "equal: both operands must be on one device, got cpu and meta");
  CHECK(error_of([&] { allclose(x.to(kMeta), x.to(kMeta)); }) ==
        "allclose: a must have values, got device meta");
  CHECK(error_of([&] { allclose(x, Tensor::ones({3})); }) ==
        "allclose: shapes must broadcast, got [2] and [3]");
}

}  // namespace weft::values_test
