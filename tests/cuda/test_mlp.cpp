#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/mlp.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/tape.h"
#include "weft/tests/activation_support.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::mlp_test {
namespace {

using test::disagreement;
using test::kGpu;
using test::mismatch;
using test::random;

// Small weights keep the sums near 1.
TensorList inputs(std::int64_t rows, std::int64_t in, std::int64_t hidden, std::int64_t out,
                  Activation a) {
  const std::int64_t width = test::hidden_width(a, hidden);
  return {random({rows, in}, 1), mul(random({width, in}, 2), 0.3), random({width}, 3),
          mul(random({out, hidden}, 4), 0.3), random({out}, 5)};
}

}  // namespace

TEST_CASE("mlp: widths that cuBLASLt's epilogues support and others") {
  for (const Activation a : test::kEveryActivation)
    for (const bool recompute : {false, true})
      for (const std::int64_t hidden : {16, 7}) {
        CAPTURE(static_cast<int>(a));
        CAPTURE(hidden);
        const MlpOptions o{.activation = a, .recompute = recompute};
        const TensorList in = inputs(9, 8, hidden, 6, a);
        const bool orders = hidden == 7 && !recompute;
        CHECK(disagreement(
                  [&](const TensorList& t) {
                    return TensorList{mlp(t[0], t[1], t[2], t[3], t[4], o)};
                  },
                  in, {.tolerance = 4, .all_orders = orders}) == "");
        CHECK(disagreement(
                  [&](const TensorList& t) { return TensorList{mlp(t[0], t[1], {}, t[2], {}, o)}; },
                  {in[0], in[1], in[3]}, {.tolerance = 4, .all_orders = false}) == "");
      }
}

TEST_CASE("mlp: zero rows and rows that are not aligned to 16 bytes") {
  const auto op = [](const TensorList& t) { return TensorList{mlp(t[0], t[1], t[2], t[3], t[4])}; };
  CHECK(disagreement(op, inputs(0, 4, 8, 3, Activation::gelu_tanh), {.all_orders = false}) == "");
  const auto shifted = [](const TensorList& t) {
    return TensorList{mlp(t[0].narrow(0, 1, 3), t[1], t[2].narrow(0, 1, 8), t[3], t[4])};
  };
  TensorList in = inputs(4, 5, 8, 3, Activation::gelu_tanh);
  in[2] = random({9}, 3);
  CHECK(disagreement(shifted, in, {.tolerance = 4, .all_orders = false}) == "");
}

TEST_CASE("mlp: bf16 gradients of weights and biases go into f32 sums") {
  const auto sums = [](const Device& device) {
    Tape tape;
    TensorList leaves;
    for (const Tensor& t : inputs(6, 8, 16, 8, Activation::gelu_tanh)) {
      leaves.push_back(t.to(DType::bf16).to(device).detach().set_requires_grad());
      leaves[leaves.size() - 1].set_main_grad(Tensor::ones(t.shape(), DType::f32).to(device));
    }
    const Tensor y = mlp(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4]);
    y.backward(random({6, 8}, 9, DType::bf16).to(device));
    TensorList out;
    for (const Tensor& t : leaves) out.push_back(t.main_grad().to(kCpu));
    return out;
  };
  const TensorList want = sums(kCpu), got = sums(kGpu);
  for (int i = 0; i < want.size(); ++i) CHECK(mismatch(got[i], want[i], 2e-2) == "");
}

TEST_CASE("mlp: f32 sums of 16-bit parameters when the first layer or its bias is frozen") {
  const auto sums = [](const Device& device, DType dtype, Activation a, std::int64_t rows,
                       bool train_up, bool train_bias) {
    Tape tape;
    TensorList leaves;
    for (const Tensor& t : inputs(rows, 8, 16, 8, a))
      leaves.push_back(t.to(dtype).to(device).detach().set_requires_grad());
    leaves[1].set_requires_grad(train_up);
    leaves[2].set_requires_grad(train_bias);
    for (const Tensor& t : leaves)
      if (t.requires_grad()) t.set_main_grad(Tensor::ones(t.shape(), DType::f32).to(device));
    const Tensor y = mlp(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4], {.activation = a});
    y.backward(random({rows, 8}, 9, dtype).to(device));
    TensorList out;
    for (const Tensor& t : leaves)
      if (t.requires_grad()) out.push_back(t.main_grad().to(kCpu));
    return out;
  };
  for (const Activation a : test::kEveryActivation)
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const std::int64_t rows : {6, 0})
        for (const bool up : {false, true})
          for (const bool bias : {false, true}) {
            CAPTURE(row_of(a).word);
            CAPTURE(dtype);
            CAPTURE(rows);
            CAPTURE(up);
            CAPTURE(bias);
            const TensorList want = sums(kCpu, dtype, a, rows, up, bias),
                             got = sums(kGpu, dtype, a, rows, up, bias);
            for (int i = 0; i < want.size(); ++i) CHECK(mismatch(got[i], want[i], 2e-2) == "");
          }
}

TEST_CASE("mlp: a recomputed region gives the same bits") {
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    TensorList leaves;
    for (const Tensor& x : inputs(6, 8, 16, 8, Activation::gelu_tanh))
      leaves.push_back(x.to(t).to(kGpu).detach().set_requires_grad());
    const Tensor dy = random({6, 8}, 9, t).to(kGpu);
    const auto run = [&leaves](const TensorList& in) {
      return TensorList{mlp(in[0], leaves[1], leaves[2], leaves[3], leaves[4])};
    };
    const auto results = [&](bool again) {
      Tape tape;
      const Tensor y = again ? recompute(run, TensorList{leaves[0]})[0] : run(leaves)[0];
      TensorList out = tape.gradients(y, leaves, dy);
      out.push_back(y);
      return out;
    };
    const TensorList want = results(false), got = results(true);
    for (int i = 0; i < want.size(); ++i)
      CHECK(test::different_bits(got[i].to(kCpu), want[i].to(kCpu)) == "");
  }
}

TEST_CASE("mlp: nothing waits for the GPU") {
  TensorList leaves;
  for (const Tensor& t : inputs(6, 8, 16, 8, Activation::gelu_tanh))
    leaves.push_back(t.to(DType::bf16).to(kGpu).detach().set_requires_grad());
  const Tensor dy = random({6, 8}, 9, DType::bf16).to(kGpu);
  Tape tape;
  const std::int64_t before = cuda::host_syncs();
  mlp(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4]).backward(dy);
  CHECK(cuda::host_syncs() == before);
}

}  // namespace weft::mlp_test
