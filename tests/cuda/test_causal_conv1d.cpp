#include <doctest/doctest.h>

#include "weft/autograd/causal_conv1d.h"
#include "weft/autograd/elementwise.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::causal_conv1d_test {
namespace {

using test::disagreement;
using test::random;

}  // namespace

TEST_CASE("causal_conv1d: outputs and gradients equal the CPU's") {
  struct {
    Shape x;
    std::int64_t taps;
  } const cases[] = {{{1, 1, 1}, 1},  {{2, 7, 3}, 4}, {{2, 3, 16}, 8},
                     {{1, 70, 5}, 3}, {{3, 0, 4}, 3}, {{1, 3, 130}, 2}};
  for (const auto& c : cases)
    for (const bool act : {false, true}) {
      CAPTURE(to_string(c.x));
      const test::Op op = [=](const TensorList& in) {
        return TensorList{causal_conv1d(in[0], in[1], {.silu = act})};
      };
      CHECK(disagreement(op, {random(c.x, 1), random({c.x.back(), c.taps}, 2)}, {.tolerance = 4}) ==
            "");
    }
}

TEST_CASE("causal_conv1d: packed, with a state, gradients of weight or x alone") {
  const Tensor cu = Tensor::of({0, 3, 3, 4, 9}, {5}, DType::i32);
  const Tensor x = random({1, 9, 6}, 1), w = random({6, 4}, 2);
  const test::Op packed = [=](const TensorList& in) {
    return TensorList{causal_conv1d(in[0], in[1], {.silu = true, .cu_seqlens = cu})};
  };
  const test::Op on_device = [](const TensorList& in) {
    return TensorList{causal_conv1d(in[0], in[1], {.cu_seqlens = in[2]})};
  };
  const test::Op state = [](const TensorList& in) {
    return TensorList{causal_conv1d(in[0], in[1], {.silu = true, .state = in[2]})};
  };
  // These taps need no gradient.
  const test::Op fixed_weight = [](const TensorList& in) {
    const Tensor taps = in[0].detach().view({9, 6}).narrow(0, 0, 4).t();
    return TensorList{causal_conv1d(in[0], taps, {.silu = true})};
  };
  CHECK(disagreement(packed, {x, w}, {.tolerance = 4}) == "");
  CHECK(disagreement(on_device, {x, w, cu}, {.tolerance = 4}) == "");
  CHECK(disagreement(state, {x, w, random({1, 3, 6}, 3)}, {.tolerance = 4}) == "");
  CHECK(disagreement(fixed_weight, {x}, {.tolerance = 4}) == "");
}

}  // namespace weft::causal_conv1d_test
