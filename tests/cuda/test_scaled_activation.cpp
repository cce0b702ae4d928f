#include <doctest/doctest.h>

#include "weft/autograd/scaled_activation.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::scaled_activation_test {

using test::disagreement;
using test::random;

TEST_CASE("scaled_activation: outputs and gradients of wide and odd rows") {
  // The scale stays f32 where h has 16 bits.
  const auto wide = [](const Tensor& t) { return is_half(t.dtype()) ? t.to(DType::f32) : t; };
  const auto swiglu = [&](const TensorList& in) {
    return TensorList{scaled_swiglu(in[0], wide(in[1]))};
  };
  const auto tanh = [&](const TensorList& in) {
    return TensorList{scaled_gelu(in[0], wide(in[1]), Gelu::tanh)};
  };
  const auto erf = [&](const TensorList& in) {
    return TensorList{scaled_gelu(in[0], wide(in[1]), Gelu::erf)};
  };
  for (const Shape& s :
       {Shape{1, 2}, Shape{9, 10}, Shape{11, 48}, Shape{2, 1072}, Shape{0, 4}, Shape{3, 0}}) {
    CAPTURE(to_string(s));
    const Tensor h = random(s, 1), p = random({s[0]}, 2);
    CHECK(disagreement(swiglu, {h, p}) == "");
    CHECK(disagreement(swiglu, {test::strided(h), test::strided(p)}) == "");
    CHECK(disagreement(tanh, {h, p}) == "");
    CHECK(disagreement(erf, {h, p}) == "");
  }
}

}  // namespace weft::scaled_activation_test
