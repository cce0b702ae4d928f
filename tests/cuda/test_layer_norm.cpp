#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/layer_norm.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::layer_norm_test {
namespace {

using test::Agreement;
using test::disagreement;
using test::kGpu;
using test::mismatch;
using test::Op;
using test::random;

// Every way to distribute a row, in every dtype: 8, 32, 128 and 512 threads with whole packs,
// single elements, and rows that are too long for the registers.
const Shape kLayerNormShapes[] = {{1, 1},   {3, 5},   {2, 3, 7}, {21, 8},   {7},
                                  {3, 200}, {6, 264}, {2, 1032}, {2, 4104}, {2, 8200},
                                  {3, 513}, {0, 4},   {130, 16}, {67, 3}};

}  // namespace

TEST_CASE("layer_norm: outputs and gradients with and without weight and bias") {
  for (const Shape& s : kLayerNormShapes) {
    CAPTURE(to_string(s));
    const Agreement how{.all_orders = s.numel() < 2000};
    const Tensor x = random(s, 1), w = random({s.back()}, 2), b = random({s.back()}, 3);
    CHECK(disagreement([](const TensorList& in) { return TensorList{layer_norm(in[0])}; }, {x},
                       how) == "");
    CHECK(disagreement(
              [](const TensorList& in) { return TensorList{layer_norm(in[0], in[1], in[2])}; },
              {x, w, b}, how) == "");
  }
}

TEST_CASE("layer_norm: weight or bias alone, strided and repeated inputs, another eps") {
  const Tensor x = test::strided(random({9, 24}, 1)), w = random({24}, 2);
  const Agreement how{};
  const Op weight = [](const TensorList& in) { return TensorList{layer_norm(in[0], in[1])}; };
  const Op bias = [](const TensorList& in) {
    return TensorList{layer_norm(in[0], {}, in[1], 0.1)};
  };
  const Op same = [](const TensorList& in) { return TensorList{layer_norm(in[0], in[1], in[1])}; };
  const Op twice = [](const TensorList& in) {
    return TensorList{layer_norm(in[0], in[1]) * in[0] + layer_norm(in[0])};
  };
  for (const Op& op : {weight, bias, same, twice}) {
    CHECK(disagreement(op, {x, w}, how) == "");
    CHECK(disagreement(op, {x, test::strided(w)}, how) == "");
  }
  // Rows that start between two packs.
  const Op shifted = [](const TensorList& in) {
    return TensorList{layer_norm(in[0].alias({8, 24}, {24, 1}, 1))};
  };
  CHECK(disagreement(shifted, {random({9, 24}, 4)}, {.gradients = false}) == "");
}

TEST_CASE("layer_norm_residual: gradients through either output or both") {
  for (const Shape& s : kLayerNormShapes) {
    CAPTURE(to_string(s));
    const TensorList in{random(s, 1), random(s, 2), random({s.back()}, 3), random({s.back()}, 4)};
    const auto run = [](const TensorList& i) {
      return layer_norm_residual(i[0], i[1], i[2], i[3]);
    };
    const Op both = [=](const TensorList& i) { return TensorList{run(i).y, run(i).sum}; };
    const Op product = [=](const TensorList& i) {
      const LayerNormResidual r = run(i);
      return TensorList{r.y * r.sum};
    };
    const Op y = [=](const TensorList& i) { return TensorList{run(i).y}; };
    const Op sum = [](const TensorList& i) {
      return TensorList{layer_norm_residual(i[0], i[1]).sum};
    };
    // In bf16 the norm reads the rounded sum, which f64 does not round.
    const bool all_orders = s.numel() < 2000;
    for (Agreement how : {Agreement{{DType::f32, DType::f64}, 1, true, all_orders},
                          Agreement{{DType::bf16}, 16, true, all_orders}}) {
      for (const Op& op : {product, y}) CHECK(disagreement(op, in, how) == "");
      CHECK(disagreement(sum, {in[0], in[1]}, how) == "");
      how.gradients = false;
      CHECK(disagreement(both, in, how) == "");
    }
  }
}

TEST_CASE("layer_norm: a large mean does not cancel the variance") {
  const Tensor x = (random({4, 96}, 1, DType::f32) * 0.5 + 10000.0);
  test::for_each_order([&] {
    CHECK(mismatch(layer_norm(x.to(kGpu)).to(kCpu), layer_norm(x.to(DType::f64)), 1e-3) == "");
  });
}

}  // namespace weft::layer_norm_test
