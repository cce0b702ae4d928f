// Values, axes, dtypes, devices and messages; gradients are in test_reduce_grad.cpp.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/values.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::reduce_test {
using test::error_of;
using test::mismatch;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const DType kFloats[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

// f(values along the reduced axes) for every result, by definition: element i of x belongs to the
// result at its kept coordinates.
template <class F>
Tensor by_definition(const Tensor& x, std::initializer_list<int> dims, bool keepdim, F f) {
  std::vector<bool> gone(static_cast<std::size_t>(x.ndim()), dims.size() == 0);
  for (const int d : dims) gone[static_cast<std::size_t>(d < 0 ? d + x.ndim() : d)] = true;
  Shape kept, full;
  for (int i = 0; i < x.ndim(); ++i) {
    const bool g = gone[static_cast<std::size_t>(i)];
    if (!g || keepdim) kept.push_back(g ? 1 : x.dim(i));
    full.push_back(g ? 1 : x.dim(i));
  }
  std::vector<std::vector<double>> groups(static_cast<std::size_t>(kept.numel()));
  std::vector<double> values(static_cast<std::size_t>(x.numel()));
  x.copy_to(values);
  const Shape steps = contiguous_strides(full);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    std::int64_t rest = i, group = 0;
    for (int d = x.ndim() - 1; d >= 0; --d) {
      if (full[d] != 1) group += rest % x.dim(d) * steps[d];
      rest /= x.dim(d);
    }
    groups[static_cast<std::size_t>(group)].push_back(values[static_cast<std::size_t>(i)]);
  }
  const Tensor out = Tensor::empty(kept, DType::f64);
  for (std::size_t g = 0; g < groups.size(); ++g) out.data<double>()[g] = f(groups[g]);
  return out;
}

using Values = std::vector<double>;
double total(const Values& v) {
  long double s = 0;
  for (const double x : v) s += x;
  return static_cast<double>(s);
}
double average(const Values& v) { return total(v) / static_cast<double>(v.size()); }
double variance(const Values& v, int correction) {
  const double mu = average(v);
  double s = 0;
  for (const double x : v) s += (x - mu) * (x - mu);
  return s / (static_cast<double>(v.size()) - correction);
}
double largest(const Values& v) { return *std::max_element(v.begin(), v.end()); }
double smallest(const Values& v) { return *std::min_element(v.begin(), v.end()); }

const std::initializer_list<int> kAxes[] = {{},     {0},     {1},    {2},        {-1},   {0, 1},
                                            {1, 2}, {0, 2},  {2, 0}, {-1, 0, 1}, {-2},   {3},
                                            {1, 3}, {3, -4}, {0, 3}, {0, 1, 3},  {2, -1}};
const Shape kShapes[] = {{2, 3, 4, 5}, {3, 1, 7, 2}, {1, 1, 1, 1}, {2, 2, 130, 3}, {2, 17, 1, 140}};

}  // namespace

TEST_CASE("reduce: sum, mean and var over any axes, dtypes and layouts") {
  for (const auto& dims : kAxes)
    for (const Shape& s : kShapes)
      for (const DType t : kFloats)
        for (const bool keepdim : {false, true}) {
          CAPTURE(to_string(s));
          const Tensor x = test::random(s, 1, t);
          const double tol = 4 * test::tolerance(t);
          for (const Tensor& in : {x, test::strided(x)}) {
            CHECK(mismatch(sum(in, dims, keepdim), by_definition(x, dims, keepdim, total), tol) ==
                  "");
            CHECK(mismatch(mean(in, dims, keepdim), by_definition(x, dims, keepdim, average),
                           tol) == "");
            CHECK(mismatch(var(in, dims, 0, keepdim),
                           by_definition(x, dims, keepdim,
                                         [](const Values& v) { return variance(v, 0); }),
                           tol) == "");
          }
        }
}

TEST_CASE("reduce: max, min, argmax and argmin along every axis") {
  for (const Shape& s : kShapes)
    for (const DType t :
         {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8})
      for (int dim = -4; dim < 4; ++dim) {
        CAPTURE(to_string(s));
        CAPTURE(dim);
        const Tensor x = test::random(s, 1, t);  // integers 0 .. 9: many ties
        const Tensor top = by_definition(x, {dim}, true, largest);
        const Tensor low = by_definition(x, {dim}, false, smallest);
        CHECK(max(x, dim).dtype() == t);
        CHECK(mismatch(max(test::strided(x), dim, true), top, 0) == "");
        CHECK(mismatch(min(x, dim), low, 0) == "");
        const auto first = [](double best, const Values& v) {
          return static_cast<double>(std::find(v.begin(), v.end(), best) - v.begin());
        };
        CHECK(argmax(x, dim).dtype() == DType::i64);
        CHECK(mismatch(argmax(x, dim, true),
                       by_definition(x, {dim}, true,
                                     [&](const Values& v) { return first(largest(v), v); }),
                       0) == "");
        CHECK(mismatch(argmin(x.transpose(0, 2), dim),
                       by_definition(x.transpose(0, 2), {dim}, false,
                                     [&](const Values& v) { return first(smallest(v), v); }),
                       0) == "");
      }
  const Tensor x = test::random({5, 70, 130}, 2, DType::f32);
  CHECK(max(x).item() == by_definition(x, {}, false, largest).item());
  CHECK(min(x).item() == by_definition(x, {}, false, smallest).item());
}

TEST_CASE("reduce: long f32 sums stay accurate over chunks and columns") {
  const Tensor x = test::random_in({1 << 20}, 0.5, 1.5, 1, DType::f32);
  CHECK(std::abs(sum(x).item() / by_definition(x, {}, false, total).item() - 1) < 1e-7);
  const Tensor tall = x.view({1 << 14, 64});
  CHECK(mismatch(sum(tall, {0}) / 16384, by_definition(tall, {0}, false, average), 2e-7) == "");
  CHECK(mismatch(sum(tall, {1}) / 64, by_definition(tall, {1}, false, average), 2e-7) == "");
  const Tensor ones = Tensor::ones({1 << 16}, DType::bf16);
  CHECK(sum(ones).item() == 65536);  // a bf16 sum would stop at 256
}

TEST_CASE("reduce: the variance of numbers far from 0 does not cancel") {
  const Tensor x = test::random({1000}, 1) + 1e8;
  CHECK(std::abs(var(x).item() - by_definition(x, {}, false, [](const Values& v) {
                                   return variance(v, 1);
                                 }).item()) < 1e-7);
}

TEST_CASE("reduce: the f32 variance of close numbers, and of equal ones") {
  const Tensor x = (test::random({4096}, 1) * 1e-3 + 10000.3).to(DType::f32),
               wide = x.to(DType::f64);
  CHECK(var(x).item() == doctest::Approx(var(wide).item()).epsilon(1e-6));
  CHECK(stddev(x).item() == doctest::Approx(stddev(wide).item()).epsilon(1e-6));
  const Tensor leaf = x.detach().set_requires_grad(), leaf64 = wide.detach().set_requires_grad();
  Tape tape;
  const Tensor d = tape.gradients(var(leaf), {leaf})[0];
  Tape tape64;
  const Tensor want = tape64.gradients(var(leaf64), {leaf64})[0];
  CHECK(test::mismatch(d * 1e6, want * 1e6, 1e-5) == "");
  for (const DType t : kFloats)
    for (const std::int64_t n : {3, 4096, 5000}) {
      const Tensor same = Tensor::full({n}, 0.1, t).set_requires_grad();
      CHECK(var(same).item() == 0);
      CHECK(stddev(same).item() == 0);
      Tape record;
      CHECK(abs(record.gradients(var(same) + stddev(same), {same})[0]).max().item() == 0);
    }
}

TEST_CASE("reduce: norms") {
  for (const DType t : kFloats)
    for (const double p : {1.0, 2.0, 3.0, 0.5, 2.5, kInf}) {
      const Tensor x = test::random({5, 9}, 1, t);
      const Tensor want = by_definition(x, {}, false, [p](const Values& v) {
        double s = 0;
        for (const double a : v)
          s = std::isinf(p) ? std::max(s, std::abs(a)) : s + std::pow(std::abs(a), p);
        return std::isinf(p) ? s : std::pow(s, 1 / p);
      });
      CAPTURE(p);
      CHECK(norm(x, p).dtype() == t);
      CHECK(mismatch(norm(x.t(), p) / want.item(), Tensor::ones({}), 2 * test::tolerance(t)) == "");
    }
  CHECK(norm(Tensor::full({4}, 1e30)).item() == doctest::Approx(2e30));  // the squares overflow f32
  // Powers that leave the range of f16 at either end, and of f32.
  const Tensor large = Tensor::full({2}, 50, DType::f16).set_requires_grad();
  Tape tape;
  const Tensor length = norm(large, 3);
  CHECK(length.item() == doctest::Approx(50 * std::cbrt(2)).epsilon(1e-3));
  CHECK(mismatch(tape.gradients(length, {large})[0],
                 Tensor::full({2}, std::pow(2, -2.0 / 3), DType::f16), 2e-3) == "");
  CHECK(norm(Tensor::full({2}, 0.01, DType::f16), 4).item() ==
        doctest::Approx(0.01 * std::pow(2, 0.25)).epsilon(2e-3));
  CHECK(norm(Tensor::full({2}, 1e20), 3).item() == doctest::Approx(1e20 * std::cbrt(2)));
  const Tensor x = Tensor::of({{3, 4}, {0, 0}});
  CHECK(mismatch(norm(x, {1}), Tensor::of({5, 0}), 0) == "");
  CHECK(mismatch(norm(x, {-1}, true), Tensor::of({5, 0}, {2, 1}), 0) == "");
  CHECK(norm(x, 1).item() == 7);  // a number without braces is p
}

TEST_CASE("reduce: logsumexp does not overflow and keeps the limits") {
  for (const DType t : kFloats)
    for (int dim = 0; dim < 3; ++dim) {
      const Tensor x = test::random({2, 5, 7}, 1, t);
      const Tensor want = by_definition(x, {dim}, false, [](const Values& v) {
        double s = 0;
        for (const double a : v) s += std::exp(a);
        return std::log(s);
      });
      CHECK(mismatch(logsumexp(x, dim), want, test::tolerance(t)) == "");
      CHECK(mismatch(logsumexp(test::strided(x) + 1024, dim) - 1024, want, is_half(t) ? 8 : 1e-3) ==
            "");
    }
  const Tensor rows = Tensor::of({-kInf, -kInf, kInf, 0, -kInf, 3}, {3, 2});
  CHECK(mismatch(logsumexp(rows), Tensor::of({-kInf, kInf, 3}, {3}), 0) == "");
}

TEST_CASE("reduce: cumsum works along every axis") {
  for (const DType t :
       {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32, DType::u8, DType::boolean})
    for (int dim = -3; dim < 3; ++dim) {
      const Tensor x = test::random({3, 4, 5}, 1, is_floating(t) ? t : DType::i64).to(t);
      const Tensor y = cumsum(x, dim);
      CHECK(y.dtype() == (is_floating(t) ? t : DType::i64));
      for (std::int64_t i = 0; i < x.dim(dim); ++i)
        CHECK(mismatch(y.select(dim, i), sum(x.narrow(dim, 0, i + 1).to(DType::f64), {dim}),
                       test::tolerance(is_half(t) ? t : DType::f32)) == "");
    }
}

TEST_CASE("reduce: sum_to is the inverse of broadcasting") {
  const Tensor x = test::random({2, 3, 4});
  CHECK(sum_to(x, {2, 3, 4}).same(x));
  CHECK(mismatch(sum_to(x, {4}), by_definition(x, {0, 1}, false, total), 1e-12) == "");
  CHECK(mismatch(sum_to(x, {3, 1}), by_definition(x, {0, 2}, true, total).view({3, 1}), 1e-12) ==
        "");
  CHECK(mismatch(sum_to(x, {2, 1, 4}), by_definition(x, {1}, true, total), 1e-12) == "");
  CHECK(mismatch(sum_to(x, {}), by_definition(x, {}, false, total), 1e-12) == "");
  CHECK(mismatch(sum_to(x, {1, 1}), by_definition(x, {}, false, total).view({1, 1}), 1e-12) == "");
}

TEST_CASE("reduce: the dtype of sum_to does not depend on the shape") {
  for (const DType t : {DType::i32, DType::i64, DType::u8, DType::boolean})
    for (const Shape& s : {Shape{2, 1}, Shape{1, 1}, Shape{}}) {
      const Tensor x = Tensor::ones({2, 1}, t);
      CHECK(sum_to(x, s).dtype() == DType::i64);
      CHECK(sum_to(x, s).dtype() == sum(x).dtype());
    }
  CHECK(test::values(sum_to(Tensor::full({2}, 255, DType::u8), {2})) ==
        std::vector<double>{255, 255});
}

TEST_CASE("reduce: sums of integers and of comparisons count in i64") {
  const Tensor u = Tensor::full({300}, 255, DType::u8);
  CHECK(sum(u).dtype() == DType::i64);
  CHECK(sum(u).item() == 76500);
  CHECK(sum(Tensor::full({3}, 2147483647, DType::i32)).item() == 3.0 * 2147483647);
  CHECK(sum(u == u).item() == 300);
  CHECK(mismatch(sum(Tensor::ones({40, 300}, DType::boolean), {0}), Tensor::full({300}, 40), 0) ==
        "");
}

TEST_CASE("reduce: NaN and empty axes") {
  const Tensor nan = Tensor::of({1, std::nan(""), 3, std::nan("")}, {4});
  CHECK(std::isnan(max(nan).item()));
  CHECK(std::isnan(min(nan).item()));
  CHECK(argmax(nan).item() == 1);
  CHECK(argmin(nan).item() == 1);
  const Tensor none = Tensor::empty({3, 0});
  CHECK(sum(none).item() == 0);
  CHECK(mismatch(sum(none, {1}), Tensor::zeros({3}), 0) == "");
  CHECK(sum(none, {0}).shape() == Shape{0});
  CHECK(std::isnan(mean(none).item()));
  CHECK(std::isnan(var(none).item()));
  CHECK(std::isnan(var(Tensor::ones({1})).item()));
  CHECK(norm(none).item() == 0);
  CHECK(mismatch(logsumexp(none), Tensor::full({3}, -kInf), 0) == "");
  CHECK(cumsum(none).shape() == Shape{3, 0});
  CHECK(sum(Tensor::full({}, 4)).item() == 4);
  CHECK(max(Tensor::full({}, 4), -1).item() == 4);
}

TEST_CASE("reduce: the meta device gives the same shape and dtype") {
  const Tensor x = Tensor::empty({3, 4, 5}, DType::bf16, kMeta);
  for (const Tensor& y : {sum(x, {0, 2}), mean(x, {0, 2}), var(x, {2, 0})}) {
    CHECK(y.shape() == Shape{4});
    CHECK(y.dtype() == DType::bf16);
    CHECK(y.is_meta());
  }
  CHECK(max(x, 1, true).shape() == Shape{3, 1, 5});
  CHECK(argmax(x).dtype() == DType::i64);
  CHECK(logsumexp(x).shape() == Shape{3, 4});
  CHECK(norm(x, 3).shape() == Shape{});
  CHECK(cumsum(x, 0).shape() == Shape{3, 4, 5});
}

TEST_CASE("reduce: any number of threads gives the same bits") {
  const Tensor x = test::random({1000, 300}, 1, DType::f32);
  const test::RestoreThreads restore;
  const auto all = [&] {
    return cat({sum(x).view({1}), sum(x, {0}), sum(x, {1}), var(x, {0}), logsumexp(x, 0)});
  };
  set_num_threads(1);
  const Tensor one = all();
  for (const int n : {2, 3, 4}) {
    set_num_threads(n);
    CHECK(test::different_bits(all(), one) == "");
  }
}

TEST_CASE("reduce: errors name the rule and the values") {
  const Tensor x = Tensor::ones({2, 3}), i = Tensor::ones({2}, DType::i64);
  CHECK(error_of([&] { sum(x, {2}); }) == "sum: dim must be in [-2, 2), got 2");
  CHECK(error_of([&] { sum(x, {1, -1}); }) == "sum: every dim may be given once, got -1 again");
  CHECK(error_of([&] { mean(i); }) == "mean: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] {
          max(Tensor::empty({0, 3}));
        }) == "max: there is no element to choose, got shape [0, 3]");
  CHECK(error_of([&] {
          min(Tensor::empty({3, 0}), 1);
        }) == "min: there is no element to choose, got shape [3, 0]");
  CHECK(error_of([&] {
          argmax(Tensor::empty({3, 0}));
        }) == "argmax: there is no element to choose, got shape [3, 0]");
  CHECK(error_of([&] { max(x == x); }) ==
        "max: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got bool");
  CHECK(error_of([&] { argmin(x == x); }) ==
        "argmin: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got bool");
  CHECK(error_of([&] { var(i); }) == "var: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { norm(i); }) == "norm: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] {
          norm(Tensor::empty({0, 3}), kInf);
        }) == "norm: x must have an element for p = infinity, got shape [0, 3]");
  CHECK(error_of([&] { norm(x, {2}); }) == "norm: dim must be in [-2, 2), got 2");
  CHECK(error_of([&] { norm(x, 0); }) == "norm: p must be positive (or infinity), got 0");
  CHECK(error_of([&] { logsumexp(i); }) ==
        "logsumexp: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { cumsum(x, 5); }) == "cumsum: dim must be in [-2, 2), got 5");
  CHECK(error_of([&] { cumsum(x.to(DType::e5m2)); }) ==
        "cumsum: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, bool, got e5m2");
  CHECK(error_of([&] { sum_to(x, {2}); }) ==
        "sum_to: shape must broadcast to x's shape [2, 3], got [2]");
}

TEST_CASE("reduce: one axis as a number, and the standard deviation") {
  const Tensor x = test::random({3, 5});
  CHECK(test::different_bits(x.sum(0), x.sum({0})) == "");
  CHECK(test::different_bits(x.mean(-1, true), x.mean({-1}, true)) == "");
  CHECK(test::different_bits(sum(x, 1), sum(x, {1})) == "");
  CHECK(test::different_bits(mean(x, 0), mean(x, {0})) == "");
  CHECK(test::mismatch(square(stddev(x, {1}, 0)), var(x, {1}, 0), 1e-14) == "");
  CHECK(stddev(x, {}, 1, true).shape() == Shape{1, 1});
  CHECK(test::error_of([&] { stddev(x.to(DType::i64)); }) ==
        "stddev: dtype must be one of f32, f64, bf16, f16, got i64");
}

TEST_CASE("reduce: products, of every number of elements, in every dtype") {
  const Tensor single = Tensor::of({3, 4}, {2, 1});
  prod(single, 1, true).fill_(0);
  prod(single, 1).fill_(0);
  CHECK(equal(single, Tensor::of({3, 4}, {2, 1})));  // the result is no view
  for (const std::int64_t n : {0, 1, 2, 3, 7, 8, 13}) {
    const Tensor x = test::random_in({2, n, 3}, 0.5, 1.5);
    const Tensor got = prod(x, 1);
    for (int i = 0; i < 2; ++i)
      for (int k = 0; k < 3; ++k) {
        double want = 1;
        for (std::int64_t j = 0; j < n; ++j) want *= x[i][j][k].item();
        CHECK(got[i][k].item() == doctest::Approx(want).epsilon(1e-14));
      }
    CHECK(prod(x, -2, true).shape() == Shape{2, 1, 3});
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      CHECK(test::mismatch(prod(x.to(t), 1), prod(x.to(t).to(DType::f64), 1),
                           4 * test::tolerance(t), 1) == "");
  }
  for (const DType t : {DType::i32, DType::i64, DType::u8}) {
    const Tensor y = prod(Tensor::of({2, 5, 7}, {3}, t));
    CHECK(y.dtype() == DType::i64);
    CHECK(y.item() == 70);
  }
  CHECK(prod(Tensor::of({1, 0}, {2}, DType::boolean)).item() == 0);
  CHECK(prod(Tensor::full({}, 3)).item() == 3);
  CHECK(prod(Tensor::empty({4, 3}, DType::f32, kMeta), 0).shape() == Shape{3});
  CHECK(test::error_of([] { prod(Tensor::ones({2}), 1); }) ==
        "prod: dim must be in [-1, 1), got 1");
  CHECK(prod(Tensor::full({}, 3), 0).item() == 3);  // as sum does
  CHECK(test::error_of([] { prod(Tensor::full({}, 3), 1); }) ==
        "prod: dim must be in [-1, 1), got 1");
  CHECK(test::error_of([] { prod(Tensor::ones({2}, DType::e5m2)); }) ==
        "prod: dtype must be one of f32, f64, bf16, f16, i32, i64, u8, got e5m2");
  CHECK(test::error_of([] { prod(Tensor()); }) == "prod: x must be a tensor, got a null handle");
}

}  // namespace weft::reduce_test
