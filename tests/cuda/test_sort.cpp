#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "weft/autograd/sort.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::sort_test {
namespace {

using test::different_bits;
using test::disagreement;
using test::kGpu;
using test::kNumbers;
using test::Op;
using test::random_in;

// Integers from -low on with few distinct values, so that stability matters.
Tensor few(const Shape& shape, double low, DType dtype, std::uint64_t seed = 1) {
  return random_in(shape, -low, 20, seed).to(DType::i64).to(dtype);
}

// Both outputs have the CPU's bits in every order.
template <class F>
void same(const Tensor& x, F f, bool all_orders = true, test::Nan nan = test::Nan::refused) {
  const ValuesIndices want = f(x);
  const Tensor g = x.to(kGpu);
  const auto once = [&] {
    const ValuesIndices got = f(g);
    CHECK(different_bits(got.indices.to(kCpu), want.indices) == "");
    CHECK(different_bits(got.values.to(kCpu), want.values, nan) == "");
  };
  if (all_orders)
    test::for_each_order(once);
  else
    once();
}

}  // namespace

TEST_CASE("sort: every dtype and short rows that share a block in both directions") {
  for (const Shape& s : {Shape{1}, Shape{1, 7}, Shape{300, 4}, Shape{3, 37}, Shape{2, 3, 64},
                         Shape{5, 700}, Shape{0, 4}, Shape{4, 0}})
    for (const DType t : kNumbers) {
      CAPTURE(to_string(s));
      CAPTURE(std::string(name(t)));
      const Tensor x = few(s, t == DType::u8 ? 0 : 20, t);
      for (const bool descending : {false, true})
        same(
            x, [=](const Tensor& v) { return sort(v, -1, descending); }, s.numel() < 1000);
    }
}

TEST_CASE("sort: rows of several runs with a single run at the end") {
  for (const std::int64_t n : {1024, 1025, 2048, 3100, 5000})
    for (const bool descending : {false, true}) {
      CAPTURE(n);
      const auto run = [=](const Tensor& v) { return sort(v, -1, descending); };
      same(few({2, n}, 20, DType::f32), run, n < 2000);
      same(random_in({1, n}, -1, 1).to(DType::bf16), run, false);
    }
  for (const DType t : kNumbers)
    same(
        few({1, 1100}, t == DType::u8 ? 0 : 20, t), [](const Tensor& v) { return sort(v); }, false);
}

TEST_CASE("sort: NaN is the largest, signed zeros are equal, extremes of integers") {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const auto both = [](const Tensor& x) {
    const auto check_same = [&](auto f) { same(x, f, true, test::Nan::allowed); };
    check_same([](const Tensor& v) { return sort(v); });
    check_same([](const Tensor& v) { return sort(v, 0, true); });
    check_same([](const Tensor& v) { return topk(v, 4); });
  };
  for (const DType t : test::kFloating)
    both(Tensor::of({nan, 1, -inf, -nan, inf, 0, -0.0, -1, 0}, {9}, t));
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  const std::int64_t values[] = {3, least, -1, least + 1, -(least + 1), 0};
  both(Tensor::from(std::span<const std::int64_t>(values), {6}));
  both(Tensor::of({0, 255, 0, 7, 255}, {5}, DType::u8));
}

TEST_CASE("topk: short and long rows of every dtype with k up to beyond a block's memory") {
  const auto top = [](std::int64_t k) { return [k](const Tensor& v) { return topk(v, k); }; };
  for (const DType t : kNumbers) {
    CAPTURE(std::string(name(t)));
    const double low = t == DType::u8 ? 0 : 20;
    same(few({70, 8}, low, t), top(2));
    same(few({3, 1000}, low, t), top(37), false);
    same(few({2, 3001}, low, t), top(1), false);
    same(few({2, 3001}, low, t), top(512), false);
    same(few({2, 1500}, low, t), top(513), false);
    // Only the value that sorts last.
    same(Tensor::full({1, 1500}, t == DType::u8 ? 0 : -3, t), top(5), false);
  }
  same(random_in({2, 2500}, -1, 1), top(40));
  // Every element is larger than all before it.
  same(Tensor::arange(0, 5000), top(50), false);
}

TEST_CASE("sort: any axis, strided memory and gradients") {
  const Tensor x = random_in({4, 7, 5}, -1, 1);
  for (const int dim : {0, 1, 2}) {
    const Op sorted = [dim](const TensorList& in) {
      return TensorList{sort(in[0], dim, true).values};
    };
    const Op top = [dim](const TensorList& in) { return TensorList{topk(in[0], 3, dim).values}; };
    for (const Tensor& in : {x, test::strided(x)}) {
      CHECK(disagreement(sorted, {in}, {.dtypes = {DType::f32, DType::f64}}) == "");
      CHECK(disagreement(top, {in}, {.dtypes = {DType::f32, DType::f64}}) == "");
    }
  }
}

}  // namespace weft::sort_test
