#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/swiglu.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::swiglu_test {

using test::disagreement;
using test::random;

TEST_CASE("swiglu: outputs and gradients of both forms for wide and odd rows") {
  const auto two = [](const TensorList& in) { return TensorList{swiglu(in[0], in[1])}; };
  const auto packed = [](const TensorList& in) { return TensorList{swiglu(in[0])}; };
  const auto twice = [](const TensorList& in) { return TensorList{swiglu(in[0], in[0])}; };
  for (const Shape& s : {Shape{1, 2}, Shape{3, 10}, Shape{2, 3, 74}, Shape{5, 48}, Shape{16},
                         Shape{2, 1072}, Shape{0, 4}, Shape{4, 0}}) {
    CAPTURE(to_string(s));
    const Tensor a = random(s, 1), b = random(s, 2);
    CHECK(disagreement(two, {a, b}) == "");
    CHECK(disagreement(two, {test::strided(a), b}) == "");
    CHECK(disagreement(twice, {a}) == "");
    CHECK(disagreement(packed, {a * 3.0}) == "");
    CHECK(disagreement(packed, {test::strided(a)}) == "");
  }
}

TEST_CASE("swiglu: large gates neither overflow nor give NaN") {
  const Tensor gate = Tensor::of({-1e4, -200, -88, -1, 0, 1, 88, 200, 1e4}, {9});
  const auto op = [](const TensorList& in) { return TensorList{swiglu(in[0], in[1])}; };
  CHECK(disagreement(op, {gate.to(DType::f64), random({9})}) == "");
}

}  // namespace weft::swiglu_test
