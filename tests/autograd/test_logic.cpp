#include <doctest/doctest.h>

#include <cmath>

#include "weft/autograd/logic.h"
#include "weft/tests/support.h"

namespace weft::logic_test {
using test::error_of;

namespace {

constexpr double kInf = INFINITY;
const DType kNumbers[] = {DType::f32, DType::f64, DType::bf16, DType::f16,
                          DType::i32, DType::i64, DType::u8};

using Values = std::vector<double>;

Values mask(const Tensor& y) {
  CHECK(y.dtype() == DType::boolean);
  CHECK(!y.requires_grad());
  return test::values(y);
}

}  // namespace

TEST_CASE("logic: isnan, isinf and isfinite of floating-point numbers") {
  for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const Tensor x = Tensor::of({0, -3, kInf, -kInf, NAN}, {5}, t).set_requires_grad();
    Tape tape;
    for (const Tensor& in : {x, test::strided(x.detach())}) {
      CHECK(mask(isnan(in)) == Values{0, 0, 0, 0, 1});
      CHECK(mask(isinf(in)) == Values{0, 0, 1, 1, 0});
      CHECK(mask(isfinite(in)) == Values{1, 1, 0, 0, 0});
    }
  }
}

TEST_CASE("logic: integers and bool are finite, the smallest one too") {
  const Tensor least = Tensor::from<std::int64_t>(std::vector<std::int64_t>{INT64_MIN, 1}, {2});
  for (const Tensor& x : {least, Tensor::of({0, 1}, {2}, DType::boolean)}) {
    CHECK(mask(isnan(x)) == Values{0, 0});
    CHECK(mask(isinf(x)) == Values{0, 0});
    CHECK(mask(isfinite(x)) == Values{1, 1});
  }
}

TEST_CASE("logic: and, or, not of masks and of numbers, broadcast") {
  const Tensor a = Tensor::of({0, 0, 1, 1}, {4}, DType::boolean);
  const Tensor b = Tensor::of({0, 1, 0, 1}, {4}, DType::boolean);
  CHECK(mask(logical_and(a, b)) == Values{0, 0, 0, 1});
  CHECK(mask(logical_or(a, b)) == Values{0, 1, 1, 1});
  CHECK(mask(logical_not(a)) == Values{1, 1, 0, 0});
  for (const DType t : kNumbers) {
    CAPTURE(name(t));
    const Tensor x = Tensor::of({0, 0, 2, 3}, {4}, t);
    CHECK(mask(logical_and(x, b)) == Values{0, 0, 0, 1});
    CHECK(mask(logical_or(b, x)) == Values{0, 1, 1, 1});
    CHECK(mask(logical_not(x)) == Values{1, 1, 0, 0});
  }
  CHECK(logical_and(a.view({4, 1}), b).shape() == Shape{4, 4});
  CHECK(mask(logical_not(Tensor::full({1}, NAN))) == Values{0});
}

TEST_CASE("logic: any and all, of everything and along an axis") {
  for (const DType t : kNumbers) {
    CAPTURE(name(t));
    const Tensor x = Tensor::of({0, 2, 0, 1, 3, 0}, {2, 3}, t);
    CHECK(mask(any(x)) == Values{1});
    CHECK(mask(all(x)) == Values{0});
    CHECK(mask(any(x, 0)) == Values{1, 1, 0});
    CHECK(mask(all(x, 0)) == Values{0, 1, 0});
    CHECK(any(x, -1, true).shape() == Shape{2, 1});
    CHECK(all(x, 1, true).shape() == Shape{2, 1});
  }
  CHECK(mask(all(Tensor::of({1, 1}, {2}, DType::boolean))) == Values{1});
  CHECK(mask(any(Tensor::of({0, NAN}, {2}))) == Values{1});
  CHECK(mask(any(Tensor::empty({0}))) == Values{0});
  CHECK(mask(all(Tensor::empty({0}))) == Values{1});
}

TEST_CASE("logic: the meta device, and errors that name the rule and the value") {
  const Tensor x = Tensor::empty({3, 1}, DType::f32, kMeta);
  CHECK(logical_or(x, isnan(x)).is_meta());
  CHECK(any(x, 0).shape() == Shape{1});
  const Tensor h = Tensor::ones({2}, DType::e5m2), one = Tensor::ones({2}),
               three = Tensor::ones({3});
  const std::string dtypes =
      ": dtype must be one of f32, f64, bf16, f16, i32, i64, u8, bool, got e5m2";
  CHECK(error_of([&] { isnan(h); }) == "isnan" + dtypes);
  CHECK(error_of([&] { isinf(h); }) == "isinf" + dtypes);
  CHECK(error_of([&] { isfinite(h); }) == "isfinite" + dtypes);
  CHECK(error_of([&] { logical_not(h); }) == "logical_not" + dtypes);
  CHECK(error_of([&] { logical_and(one, h); }) == "logical_and" + dtypes);
  CHECK(error_of([&] { any(h); }) == "any" + dtypes);
  CHECK(error_of([&] { all(h); }) == "all" + dtypes);
  CHECK(error_of([&] { logical_and(one, three); }) ==
        "logical_and: shapes must broadcast, got [2] and [3]");
  CHECK(error_of([&] { logical_or(one, three); }) ==
        "logical_or: shapes must broadcast, got [2] and [3]");
  CHECK(error_of([&] { logical_or(one, x); }) ==
        "logical_or: both operands must be on one device, got cpu and meta");
}

}  // namespace weft::logic_test
