#include <doctest/doctest.h>

#include "weft/autograd/router_noise.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::router_noise_test {
namespace {

using test::disagreement;
using test::Op;
using test::random;

}  // namespace

TEST_CASE("router_noise: numbers and gradients equal the CPU's") {
  const Op shaken = [](const TensorList& in) {
    return TensorList{jitter(in[0], 0.25, {7, 8, 40})};
  };
  // In bf16 the drawn factor is rounded, unlike in f64.
  CHECK(disagreement(shaken, {random({5, 7}, 1)}) == "");
  const Op forced = [](const TensorList& in) {
    return TensorList{random_logits(in[0], {7, 8, 3}, in[1])};
  };
  CHECK(disagreement(forced, {random({5, 7}, 1), random({7}, 2)}, {.gradients = false}) == "");
}

}  // namespace weft::router_noise_test
