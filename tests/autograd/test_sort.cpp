#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/sort.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::sort_test {
namespace {

using test::different_bits;
using test::error_of;
using test::random;
using test::strided;

// Positions of one row in stable order, from the standard library.
std::vector<std::int64_t> order_of(const std::vector<double>& v, bool descending) {
  const auto key = [](double x) { return std::isnan(x) ? std::pair{1, 0.0} : std::pair{0, x}; };
  std::vector<std::int64_t> order(v.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const auto ka = key(v[static_cast<std::size_t>(a)]), kb = key(v[static_cast<std::size_t>(b)]);
    return descending ? kb < ka : ka < kb;
  });
  return order;
}

std::vector<std::int64_t> as_vector(const Tensor& indices) {
  const Tensor c = indices.contiguous();
  return {c.data<std::int64_t>(), c.data<std::int64_t>() + c.numel()};
}

std::vector<double> as_doubles(const Tensor& x) {
  std::vector<double> out(static_cast<std::size_t>(x.numel()));
  x.copy_to(out);
  return out;
}

}  // namespace

TEST_CASE("sort: agrees with the standard stable sort for every length and dtype") {
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8})
    for (const std::int64_t n : {1, 2, 15, 16, 17, 33, 64, 100, 1000}) {
      CAPTURE(n);
      // Few distinct values, so that stability matters.
      const Tensor x = test::random_in({n}, 0, 20, 4).to(DType::i64).to(dtype);
      for (const bool descending : {false, true}) {
        const ValuesIndices s = sort(x, 0, descending);
        CHECK(as_vector(s.indices) == order_of(as_doubles(x), descending));
        CHECK(different_bits(s.values, index_select(x, 0, s.indices)) == "");
      }
    }
}

TEST_CASE("sort: NaN is the largest value and signed zeros are equal") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x = Tensor::of({nan, 1, -inf, nan, inf, 0, -0.0}, {7}, DType::f64);
  CHECK(as_vector(sort(x).indices) == std::vector<std::int64_t>{2, 5, 6, 1, 4, 0, 3});
  CHECK(as_vector(sort(x, 0, true).indices) == std::vector<std::int64_t>{0, 3, 4, 1, 5, 6, 2});
  CHECK(as_vector(topk(x, 4).indices) == std::vector<std::int64_t>{0, 3, 4, 1});
}

TEST_CASE("topk: equals the head of the descending sort along every axis") {
  const Tensor x = test::random_in({4, 7, 5}, 0, 6, 8).to(DType::i32).to(DType::f32);
  for (const int dim : {0, 1, -1})
    for (std::int64_t k = 1; k <= x.dim(dim); ++k) {
      const ValuesIndices all = sort(x, dim, true), some = topk(x, k, dim);
      CHECK(different_bits(some.values, all.values.narrow(dim, 0, k)) == "");
      CHECK(different_bits(some.indices, all.indices.narrow(dim, 0, k)) == "");
      CHECK(different_bits(topk(strided(x), k, dim).values, some.values) == "");
    }
}

TEST_CASE("sort: rows along any axis, empty axes and axes of length one") {
  const Tensor x = random({3, 40, 2});
  const ValuesIndices s = sort(x, 1);
  for (int a = 0; a < 3; ++a)
    for (int b = 0; b < 2; ++b) {
      const Tensor row = x.select(0, a).select(1, b);
      CHECK(as_vector(s.indices.select(0, a).select(1, b)) == order_of(as_doubles(row), false));
    }
  CHECK(different_bits(sort(strided(x), 1).values, s.values) == "");
  CHECK(sort(Tensor::empty({0}), 0).values.shape() == Shape{0});
  CHECK(sort(Tensor::empty({2, 0, 3}), 2, true).indices.shape() == Shape{2, 0, 3});
  CHECK(topk(Tensor::empty({0, 4}), 2).values.shape() == Shape{0, 2});
}

TEST_CASE("sort: the number of threads changes nothing") {
  const test::RestoreThreads restore;
  const Tensor x = random({60, 500}, 2, DType::f32);
  set_num_threads(1);
  const Tensor sorted = sort(x).indices, top = topk(x, 9).indices;
  set_num_threads(3);
  CHECK(different_bits(sort(x).indices, sorted) == "");
  CHECK(different_bits(topk(x, 9).indices, top) == "");
}

TEST_CASE("sort: first and second gradients go to the sources of the values") {
  const Tensor x = random({3, 6});
  const GradcheckOptions twice{.second_order = true};
  for (const Tensor& in : {x, strided(x)})
    for (const int dim : {0, 1}) {
      CHECK(gradcheck([&](const TensorList& t) { return sort(t[0] * t[0], dim).values; }, {in},
                      twice) == "");
      CHECK(gradcheck([&](const TensorList& t) { return topk(t[0] * t[0], 2, dim).values; }, {in},
                      twice) == "");
    }
  CHECK(gradcheck([](const TensorList& t) { return sort(t[0], 0, true).values; },
                  {Tensor::empty({0, 2}, DType::f64)}) == "");
  CHECK(
      gradcheck([](const TensorList& t) { return sort(t[0], 1).values * topk(t[0], 6, 1).values; },
                {x}) == "");
  Tensor leaf = x.detach();
  leaf.set_requires_grad();
  Tape tape;
  CHECK_FALSE(sort(leaf).indices.requires_grad());
}

TEST_CASE("sort: argsort is the order of sort, and has no gradient") {
  const Tensor x = test::random_in({4, 30}, 0, 9, 4).to(DType::i64).to(DType::f32);
  for (const int dim : {0, 1})
    for (const bool descending : {false, true}) {
      const ValuesIndices s = sort(strided(x), dim, descending);
      CHECK(different_bits(argsort(strided(x), dim, descending), s.indices) == "");
    }
  Tensor leaf = x.detach();
  leaf.set_requires_grad();
  Tape tape;
  CHECK_FALSE(recording(argsort(leaf)));
  CHECK(argsort(Tensor::empty({0, 3})).shape() == Shape{0, 3});
  CHECK(argsort(Tensor::empty({2, 3}, DType::u8, kMeta)).dtype() == DType::i64);
  CHECK(error_of([] { argsort(Tensor::ones({})); }) ==
        "argsort: x must have at least one axis, got a scalar");
  CHECK(error_of([&] { argsort(x > 0); }) ==
        "argsort: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got bool");
}

TEST_CASE("sort: meta tensors take the same shapes") {
  const Tensor x = Tensor::empty({3, 8}, DType::bf16, kMeta);
  const ValuesIndices s = sort(x, 0), t = topk(x, 5);
  CHECK(s.values.shape() == Shape{3, 8});
  CHECK(s.indices.dtype() == DType::i64);
  CHECK(t.values.shape() == Shape{3, 5});
  CHECK(t.values.dtype() == DType::bf16);
  CHECK(t.indices.is_meta());
}

TEST_CASE("sort: errors name the rule") {
  const Tensor x = Tensor::ones({2, 3});
  CHECK(error_of([&] { topk(x, 0); }) == "topk: k must be in [1, 3], got 0");
  CHECK(error_of([&] { topk(x, 3, 0); }) == "topk: k must be in [1, 2], got 3");
  CHECK(error_of([&] { topk(x.to(DType::e5m2), 1); }) ==
        "topk: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got e5m2");
  CHECK(error_of([&] { sort(x, 2); }) == "sort: dim must be in [-2, 2), got 2");
  CHECK(error_of([&] { sort(Tensor::ones({})); }) ==
        "sort: x must have at least one axis, got a scalar");
  CHECK(error_of([&] { sort(x.to(DType::boolean)); }) ==
        "sort: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got bool");
}

}  // namespace weft::sort_test
