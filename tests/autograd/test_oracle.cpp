// Compares array arithmetic with xtensor on generated shapes, and tests the views of
// weft/xtensor.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/tests/oracle.h"
#include "weft/tests/support.h"

namespace weft::oracle_test {
using test::mismatch;

namespace {

/// A small generator for shapes and choices. The values come from test::random.
struct Dice {
  std::uint64_t state;
  int roll(int low, int high) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return low + static_cast<int>((state >> 33) % static_cast<std::uint64_t>(high - low + 1));
  }
  Shape shape(int least_dims, int most_dims) {
    Shape s;
    for (int n = roll(least_dims, most_dims); n > 0; --n) s.push_back(roll(1, 6));
    return s;
  }
};

// A shape that broadcasts with s: some axes become 1, some leading axes are dropped.
Shape partner(const Shape& s, Dice& dice) {
  Shape out;
  for (int i = dice.roll(0, s.size()); i < s.size(); ++i)
    out.push_back(dice.roll(0, 2) == 0 ? 1 : s[i]);
  return out;
}

// The same values in a random memory order: transposed or strided.
Tensor shuffled(const Tensor& x, Dice& dice) {
  if (x.ndim() == 0) return x;
  const int a = dice.roll(0, x.ndim() - 1), b = dice.roll(0, x.ndim() - 1);
  const Tensor moved = x.transpose(a, b).clone().transpose(a, b);
  return dice.roll(0, 1) ? moved : test::strided(x);
}

// The library takes lists of axes in braces.
template <class F>
Tensor with_axes(const std::vector<int>& v, F f) {
  switch (v.size()) {
    case 1:
      return f({v[0]});
    case 2:
      return f({v[0], v[1]});
    case 3:
      return f({v[0], v[1], v[2]});
    default:
      return f({v[0], v[1], v[2], v[3]});
  }
}

}  // namespace

TEST_CASE("oracle: broadcasting arithmetic on 40 generated pairs of shapes") {
  for (int k = 0; k < 40; ++k) {
    Dice dice{static_cast<std::uint64_t>(k) + 1};
    const Shape s = dice.shape(0, 4);
    Tensor a = shuffled(test::random_in(s, 0.5, 2, 1), dice);
    Tensor b = shuffled(test::random_in(partner(s, dice), 0.5, 2, 2), dice);
    if (dice.roll(0, 1)) std::swap(a, b);
    CAPTURE(to_string(a.shape()));
    CAPTURE(to_string(b.shape()));
    using oracle::Binary;
    CHECK(mismatch(a + b, oracle::binary(Binary::add, a, b), 0) == "");
    CHECK(mismatch(a - b, oracle::binary(Binary::sub, a, b), 0) == "");
    CHECK(mismatch(a * b, oracle::binary(Binary::mul, a, b), 0) == "");
    CHECK(mismatch(a / b, oracle::binary(Binary::div, a, b), 0) == "");
    CHECK(mismatch(minimum(a, b), oracle::binary(Binary::minimum, a, b), 0) == "");
    CHECK(mismatch(maximum(a, b), oracle::binary(Binary::maximum, a, b), 0) == "");
    CHECK(mismatch(a < b, oracle::less(a, b), 0) == "");
    CHECK(mismatch(where(a < b, a, b), oracle::where_less(a, b), 0) == "");
  }
}

TEST_CASE("oracle: reductions over generated axes of 40 generated shapes") {
  for (int k = 0; k < 40; ++k) {
    Dice dice{static_cast<std::uint64_t>(k) + 100};
    const Tensor x = shuffled(test::random(dice.shape(1, 4), 3), dice);
    std::vector<int> axes(static_cast<std::size_t>(x.ndim()));
    std::iota(axes.begin(), axes.end(), 0);
    for (std::size_t i = axes.size(); i > 1; --i)
      std::swap(axes[i - 1], axes[static_cast<std::size_t>(dice.roll(0, static_cast<int>(i) - 1))]);
    axes.resize(static_cast<std::size_t>(dice.roll(1, x.ndim())));
    const bool keep = dice.roll(0, 1) == 1;
    const int axis = axes[0];
    CAPTURE(to_string(x.shape()));
    CAPTURE(axis);
    using oracle::Reduction;
    using Dims = std::initializer_list<int>;
    CHECK(mismatch(with_axes(axes, [&](Dims d) { return sum(x, d, keep); }),
                   oracle::reduce(Reduction::sum, x, axes, keep), 1e-12) == "");
    CHECK(mismatch(with_axes(axes, [&](Dims d) { return mean(x, d, keep); }),
                   oracle::reduce(Reduction::mean, x, axes, keep), 1e-12) == "");
    CHECK(mismatch(with_axes(axes, [&](Dims d) { return var(x, d, 0, keep); }),
                   oracle::reduce(Reduction::var, x, axes, keep), 1e-12) == "");
    CHECK(mismatch(max(x, axis, keep), oracle::reduce(Reduction::max, x, {axis}, keep), 0) == "");
    CHECK(mismatch(min(x, axis, keep), oracle::reduce(Reduction::min, x, {axis}, keep), 0) == "");
    CHECK(mismatch(argmax(x, axis), oracle::argmax(x, axis), 0) == "");
    CHECK(mismatch(cumsum(x, axis), oracle::cumsum(x, axis), 1e-12) == "");
  }
}

TEST_CASE("oracle: slices and transposes of 20 generated shapes") {
  for (int k = 0; k < 20; ++k) {
    Dice dice{static_cast<std::uint64_t>(k) + 200};
    const Shape s = dice.shape(2, 4);
    const Tensor x = shuffled(test::random(s, 4), dice);
    CAPTURE(to_string(s));
    std::vector<int> begin, end, step;
    Tensor part = x;
    for (int i = 0; i < s.size(); ++i) {
      begin.push_back(dice.roll(0, static_cast<int>(s[i]) - 1));
      end.push_back(dice.roll(begin.back() + 1, static_cast<int>(s[i])));
      step.push_back(dice.roll(1, 3));
      part = part.slice(i, begin.back(), end.back(), step.back());
    }
    CHECK(mismatch(part, oracle::slice(x, begin, end, step), 0) == "");
    const int a = dice.roll(0, s.size() - 1), b = dice.roll(0, s.size() - 1);
    std::vector<int> axes(static_cast<std::size_t>(s.size()));
    std::iota(axes.begin(), axes.end(), 0);
    std::swap(axes[static_cast<std::size_t>(a)], axes[static_cast<std::size_t>(b)]);
    CHECK(mismatch(x.transpose(a, b), oracle::transpose(x, axes), 0) == "");
    CHECK(mismatch(exp(part.transpose(a, b)), exp(part).transpose(a, b), 0) == "");
  }
}

TEST_CASE("xtensor.h: a view shares memory, shape and strides") {
  const Tensor base = test::random({4, 6});
  const Tensor turned = base.t().slice(0, 1, 6, 2);
  for (const Tensor& x : {base, turned, base.narrow(1, 2, 3), Tensor::full({}, 2, DType::f64)}) {
    CHECK(oracle::view_shares_memory(x));
    CHECK(oracle::sum_through_view(x) == doctest::Approx(sum(x).item()));
    const Tensor before = x.clone();
    oracle::add_one_through_view(x);
    CHECK(mismatch(x, before + 1, 0) == "");
  }
  const Tensor untouched = Tensor::zeros({2, 4}, DType::f64);
  oracle::add_one_through_view(untouched.slice(1, 0, 4, 2));
  CHECK(mismatch(untouched, Tensor::of({1, 0, 1, 0, 1, 0, 1, 0}, {2, 4}), 0) == "");
}

TEST_CASE("xtensor.h: a tensor takes over an array's memory") {
  const void* memory = nullptr;
  const Tensor x = oracle::made_from_array({2, 3}, &memory);
  CHECK(x.raw() == memory);
  CHECK(mismatch(x, Tensor::of({0, 1, 2, 3, 4, 5}, {2, 3}), 0) == "");
}

TEST_CASE("xtensor.h: errors name the rule") {
  CHECK(test::error_of([] { oracle::view_as_f32(Tensor::ones({2}, DType::f64)); }) ==
        "data: the tensor's dtype is f64, got a request for f32");
  CHECK(test::error_of([] { oracle::view_as_f32(Tensor::empty({2}, DType::f32, kMeta)); }) ==
        "xt_view: the tensor must be on the cpu, got meta");
}

}  // namespace weft::oracle_test
