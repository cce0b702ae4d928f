#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/softmax.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::softmax_test {
namespace {

using test::disagreement;
using test::kGpu;
using test::Op;
using test::random;

const Op kSoftmax = [](const TensorList& in) { return TensorList{softmax(in[0])}; };
const Op kLogSoftmax = [](const TensorList& in) { return TensorList{log_softmax(in[0])}; };

void check_both(const Tensor& x) {
  CHECK(disagreement(kSoftmax, {x}) == "");
  CHECK(disagreement(kLogSoftmax, {x}) == "");
}

}  // namespace

TEST_CASE("softmax: one warp per row with whole packs and odd widths") {
  for (const Shape& s : {Shape{1}, Shape{1, 1}, Shape{3, 5}, Shape{2, 3, 37}, Shape{9, 64},
                         Shape{2, 264}, Shape{0, 4}, Shape{4, 0}}) {
    CAPTURE(to_string(s));
    check_both(random(s));
    check_both(test::strided(random(s)));
  }
}

TEST_CASE("softmax: one block per row and rows longer than its registers") {
  for (const Shape& s : {Shape{2, 1032}, Shape{1, 2051}, Shape{1, 8192}, Shape{1, 16001},
                         Shape{1, 17008}, Shape{2, 16387}}) {
    CAPTURE(to_string(s));
    check_both(random(s));
  }
}

TEST_CASE("softmax: a row that starts between two 16-byte boundaries") {
  for (const std::int64_t n : {40, 16401})
    for (const DType t : test::kFloating) {
      const Tensor x = random({n + 3}).to(t), g = x.to(kGpu);
      const auto run = [n](const Tensor& v) { return softmax(v.slice(0, 3, n + 3)); };
      CHECK(test::mismatch(run(g).to(kCpu), run(x), test::tolerance(t)) == "");
    }
}

TEST_CASE("softmax: another axis and an input used twice") {
  const Op columns = [](const TensorList& in) { return TensorList{softmax(in[0], 0)}; };
  const Op twice = [](const TensorList& in) {
    return TensorList{softmax(in[0]) * log_softmax(in[0])};
  };
  CHECK(disagreement(columns, {random({6, 5})}) == "");
  CHECK(disagreement(twice, {random({3, 7})}, {.tolerance = 4}) == "");
}

TEST_CASE("softmax: large values, infinities and NaN") {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const Tensor few = Tensor::of({1000, 999, -inf, 1, 2, nan, -inf, -inf, -inf, inf, 1, 2}, {4, 3});
  // The same values far apart in a row that is read twice.
  const Tensor wide = Tensor::full({4, 16400}, -inf);
  for (int i = 0; i < 3; ++i) wide.narrow(1, i * 8000, 1).copy_(few.narrow(1, i, 1));
  for (const Tensor& x : {few, wide})
    for (const DType t : test::kFloating) {
      CAPTURE(std::string(name(t)));
      const Tensor c = x.to(t), g = c.to(kGpu);
      test::for_each_order([&] {
        CHECK(test::mismatch(softmax(g).to(kCpu), softmax(c), test::tolerance(t)) == "");
        CHECK(test::mismatch(log_softmax(g).to(kCpu), log_softmax(c), test::tolerance(t)) == "");
      });
    }
}

}  // namespace weft::softmax_test
