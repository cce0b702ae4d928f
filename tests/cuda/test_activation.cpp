#include <doctest/doctest.h>

#include "weft/tests/activation_support.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::activation_test {

using test::disagreement;
using test::hidden_width;
using test::random;

TEST_CASE("activation, scaled_activation: outputs and gradients on a GPU") {
  const auto wide = [](const Tensor& t) { return is_half(t.dtype()) ? t.to(DType::f32) : t; };
  for (const ActivationRow& row : kActivations) {
    CAPTURE(row.word);
    const auto plain = [&](const TensorList& in) {
      return TensorList{activation(in[0], row.kind)};
    };
    const auto scaled = [&](const TensorList& in) {
      return TensorList{scaled_activation(in[0], wide(in[1]), row.kind)};
    };
    for (const std::int64_t width : {1, 5, 24, 0}) {
      CAPTURE(width);
      const Tensor h = random({9, hidden_width(row.kind, width)}, 1), p = random({9}, 2);
      CHECK(disagreement(plain, {h}, {.tolerance = 2}) == "");
      CHECK(disagreement(scaled, {h, p}, {.tolerance = 2}) == "");
      CHECK(disagreement(scaled, {test::strided(h), test::strided(p)}, {.tolerance = 2}) == "");
    }
  }
}

TEST_CASE("activation: nothing waits for the GPU") {
  for (const ActivationRow& row : kActivations) {
    const Tensor h = random({9, hidden_width(row.kind, 8)}, 1, DType::bf16)
                         .to(test::kGpu)
                         .detach()
                         .set_requires_grad(),
                 dy = random({9, 8}, 2, DType::bf16).to(test::kGpu);
    const std::int64_t before = cuda::host_syncs();
    Tape tape;
    activation(h, row.kind).backward(dy);
    CHECK(cuda::host_syncs() == before);
  }
}

}  // namespace weft::activation_test
