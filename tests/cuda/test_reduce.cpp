#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::reduce_test {
namespace {

using test::different_bits;
using test::disagreement;
using test::kGpu;
using test::kNumbers;
using test::one;
using test::Op;
using test::random;

// The axes before the reduced one, that axis, and the axes after it: columns in whole and partial
// packs, narrow and wide; rows of a thread, a warp and a block.
struct ReduceCase {
  Shape shape;
  int dim;
};
const ReduceCase kCases[] = {{{5}, 0},         {{1, 1}, 1},   {{3, 40, 5}, 1}, {{3, 40, 16}, 1},
                             {{2, 7, 264}, 1}, {{90, 24}, 0}, {{130, 3}, 0},   {{9, 7}, 1},
                             {{11, 45}, 1},    {{2, 300}, 1}, {{2, 2100}, 1},  {{0, 4}, 1},
                             {{4, 0}, 0}};

// The op's results on the GPU have the CPU's bits in every order.
template <class F>
void same_bits(const Tensor& x, F f, test::Nan nan = test::Nan::refused) {
  const Tensor want = f(x), g = x.to(kGpu);
  test::for_each_order([&] { CHECK(different_bits(f(g).to(kCpu), want, nan) == ""); });
}

}  // namespace

TEST_CASE("reduce: sums and moments along every kind of axis and their gradients") {
  for (const auto& [shape, dim] : kCases) {
    CAPTURE(to_string(shape));
    const Tensor x = random(shape);
    const auto sums = one([dim = dim](const Tensor& t) { return sum(t, {dim}); });
    const auto means = one([dim = dim](const Tensor& t) { return mean(t, {dim}, true); });
    CHECK(disagreement(sums, {x}) == "");
    CHECK(disagreement(sums, {test::strided(x)}) == "");
    CHECK(disagreement(means, {x}) == "");
    if (x.dim(dim) > 1)
      CHECK(disagreement(one([dim = dim](const Tensor& t) { return var(t, {dim}); }), {x}) == "");
    if (x.dim(dim) > 0)
      CHECK(disagreement(one([dim = dim](const Tensor& t) { return logsumexp(t, dim); }), {x}) ==
            "");
  }
}

TEST_CASE("reduce: all elements, several axes and an input used twice") {
  const Tensor x = random({4, 6, 10});
  CHECK(disagreement(one([](const Tensor& t) { return sum(t); }), {x}) == "");
  CHECK(disagreement(one([](const Tensor& t) { return sum(t, {0, 2}); }), {x}) == "");
  CHECK(disagreement(one([](const Tensor& t) { return norm(t); }), {x}) == "");
  CHECK(disagreement(one([](const Tensor& t) { return sum(t * t, {1}) + sum(t, {1}); }), {x}) ==
        "");
  CHECK(disagreement(one([](const Tensor& t) { return sum(t); }), {random({0, 3})}) == "");
}

TEST_CASE("reduce: long axes are split") {
  const auto all = one([](const Tensor& t) { return sum(t); });
  const auto columns = one([](const Tensor& t) { return sum(t, {0}); });
  const auto most = one([](const Tensor& t) { return max(t, 0); });
  CHECK(disagreement(all, {random({3, 9001})}, {.gradients = false, .all_orders = false}) == "");
  for (const Shape& s : {Shape{9001, 3}, Shape{2050, 16}}) {
    CHECK(disagreement(columns, {random(s)}, {.gradients = false, .all_orders = false}) == "");
    CHECK(disagreement(most, {random(s)}, {.gradients = false, .all_orders = false}) == "");
  }
}

TEST_CASE("reduce: values near a large mean keep their variance") {
  const Tensor x = random({3, 50}) + 4096.0;
  for (const int dim : {0, 1})
    CHECK(disagreement(one([dim](const Tensor& t) { return var(t, {dim}); }), {x},
                       {.dtypes = {DType::f32, DType::f64}, .gradients = false}) == "");
}

TEST_CASE("reduce: equal numbers have a variance of exactly 0") {
  for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16})
    for (const Shape& shape : {Shape{4096, 1}, Shape{3, 700}, Shape{50, 9}}) {
      const Tensor x = Tensor::full(shape, 0.1, t).to(kGpu).set_requires_grad();
      for (const int dim : {0, 1}) {
        if (shape[dim] == 1) continue;
        Tape tape;
        const Tensor y = sum(var(x, {dim}) + stddev(x, {dim}));
        CHECK(y.item() == 0);
        CHECK(abs(tape.gradients(y, {x})[0]).max().item() == 0);
      }
    }
}

TEST_CASE("reduce: extremes and their positions with ties in every dtype") {
  for (const auto& [shape, dim] : kCases) {
    if (shape[dim] == 0) continue;
    CAPTURE(to_string(shape));
    for (const DType t : kNumbers) {
      CAPTURE(std::string(name(t)));
      // Few different values, so that the first of several equal ones matters.
      const Tensor x = random(shape, 3, DType::i32).to(t);
      same_bits(x, [dim = dim](const Tensor& v) { return max(v, dim); });
      same_bits(x, [dim = dim](const Tensor& v) { return min(v, dim, true); });
      same_bits(x, [dim = dim](const Tensor& v) { return argmax(v, dim); });
      same_bits(x, [dim = dim](const Tensor& v) { return argmin(v, dim); });
      same_bits(test::strided(x), [dim = dim](const Tensor& v) { return sum(v, {dim}); });
    }
  }
  same_bits(random({3, 7}).to(DType::boolean), [](const Tensor& v) { return sum(v, {1}); });
  same_bits(random({3, 2, 40}).to(DType::boolean), [](const Tensor& v) { return sum(v, {0, 1}); });
}

TEST_CASE("reduce: NaN wins, infinities stay, and an offset view") {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  for (const DType t : test::kFloating) {
    const Tensor x = Tensor::of({1, nan, 3, nan, -inf, -inf, -inf, inf, 2}, {3, 3}, t);
    for (const int dim : {0, 1}) {
      same_bits(
          x, [dim](const Tensor& v) { return max(v, dim); }, test::Nan::allowed);
      same_bits(
          x, [dim](const Tensor& v) { return min(v, dim); }, test::Nan::allowed);
      same_bits(x, [dim](const Tensor& v) { return argmax(v, dim); });
      same_bits(x, [dim](const Tensor& v) { return argmin(v, dim); });
      same_bits(
          x, [dim](const Tensor& v) { return logsumexp(v, dim); }, test::Nan::allowed);
    }
    const Tensor tail = random({403}, 5, DType::i32).to(t);
    same_bits(tail, [](const Tensor& v) { return sum(v.slice(0, 3, 403)); });
    same_bits(tail, [](const Tensor& v) { return argmax(v.slice(0, 3, 403)); });
  }
}

TEST_CASE("reduce: gradients of extremes go to the first of equal elements") {
  const Tensor x = random({4, 9}, 7, DType::i32).to(DType::f64);
  CHECK(disagreement(one([](const Tensor& t) { return max(t, 1); }), {x}) == "");
  CHECK(disagreement(one([](const Tensor& t) { return min(t, 0); }), {x}) == "");
  CHECK(disagreement(one([](const Tensor& t) { return max(t); }), {x}) == "");
}

TEST_CASE("cumsum: rows of a warp, of several tiles and columns in both directions") {
  for (const auto& [shape, dim] : kCases) {
    CAPTURE(to_string(shape));
    // The gradient runs in the other direction.
    const auto run = one([dim = dim](const Tensor& t) { return cumsum(t, dim); });
    CHECK(disagreement(run, {random(shape)}) == "");
    for (const DType t : {DType::i32, DType::u8, DType::boolean})
      same_bits(random(shape, 2, DType::i32).to(t),
                [dim = dim](const Tensor& v) { return cumsum(v, dim); });
  }
  CHECK(disagreement(one([](const Tensor& t) { return cumsum(t, 1); }), {random({2, 4500})},
                     {.all_orders = false}) == "");
}

TEST_CASE("cumsum: infinities and NaN affect only the sums from their position on") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const std::int64_t n : {3, 40, 700})
    for (const double value : {inf, -inf, std::nan("")})
      for (const DType t : test::kFloating) {
        const Tensor x = random({2, n}, 5, DType::i32).to(t);  // integers: every order is exact
        x.narrow(1, n / 2, 1).fill_(value);
        for (const int dim : {0, 1})
          same_bits(
              x, [dim](const Tensor& v) { return cumsum(v, dim); }, test::Nan::allowed);
      }
}

}  // namespace weft::reduce_test
