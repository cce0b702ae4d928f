#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/rms_norm.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::rms_norm_test {
namespace {

using test::Agreement;
using test::disagreement;
using test::Op;
using test::random;

// Every way to distribute a row, in every dtype: 8, 32, 128 and 512 threads with whole packs,
// single elements, and rows that are too long for the registers.
const Shape kRmsNormShapes[] = {{1, 1},   {3, 5},   {2, 3, 7}, {21, 8},   {7},
                                {3, 200}, {6, 264}, {2, 1032}, {2, 4104}, {2, 8200},
                                {3, 513}, {0, 4},   {130, 16}, {67, 3}};

// In a row of one element the gradient is dy rstd (1 - x^2 rstd^2): a difference of equal terms.
double terms_of(const Shape& s) { return s.back() == 1 ? 1 : 0; }

}  // namespace

TEST_CASE("rms_norm: outputs and gradients with and without weight") {
  for (const Shape& s : kRmsNormShapes) {
    CAPTURE(to_string(s));
    const Agreement how{.all_orders = s.numel() < 2000, .terms = terms_of(s)};
    const Tensor x = random(s, 1), w = random({s.back()}, 2);
    CHECK(disagreement([](const TensorList& in) { return TensorList{rms_norm(in[0])}; }, {x},
                       how) == "");
    CHECK(disagreement([](const TensorList& in) { return TensorList{rms_norm(in[0], in[1])}; },
                       {x, w}, how) == "");
    CHECK(disagreement(
              [](const TensorList& in) { return TensorList{rms_norm(in[0], in[1], 0.1, true)}; },
              {x, w}, how) == "");
    CHECK(disagreement(
              [](const TensorList& in) { return TensorList{rms_norm(in[0], {}, 0.1, true)}; }, {x},
              {.gradients = false, .all_orders = false}) == "");
  }
}

TEST_CASE("rms_norm: zero-centred weights are neither rounded nor lost in 16 bits") {
  for (const DType t : {DType::bf16, DType::f16})
    for (const Shape& s : {Shape{5, 37}, Shape{3, 64}, Shape{2, 8200}}) {
      CAPTURE(to_string(s));
      const Tensor dy = random(s, 2, t), w = Tensor::full({s.back()}, 0.003, t);
      const Tensor x = div(random(s, 1, DType::i64).to(DType::f64), 2).to(t);
      // y, dx and dweight
      const auto run = [&](Device device, DType dtype) {
        const auto there = [&](const Tensor& v) { return v.to(dtype).to(device); };
        const Tensor in = there(x).set_requires_grad(), weight = there(w).set_requires_grad();
        Tape tape;
        const Tensor y = rms_norm(in, weight, 1e-6, true);
        TensorList out = tape.gradients(y, {in, weight}, there(dy));
        out.push_back(y);
        return out;
      };
      const TensorList got = run(test::kGpu, t), want = run(kCpu, DType::f64);
      // One rounding is at most half a step, here of numbers near 1; 1 % more for f32 before it.
      const double half = t == DType::bf16 ? 0x1p-8 : 0x1p-11;
      for (std::size_t i = 0; i < 3; ++i) CHECK(test::mismatch(got[i], want[i], 1.01 * half) == "");
    }
}

TEST_CASE("rms_norm: strided and repeated inputs and another eps") {
  const Tensor x = test::strided(random({9, 24}, 1)), w = random({24}, 2);
  const Agreement how{};
  const Op weight = [](const TensorList& in) { return TensorList{rms_norm(in[0], in[1])}; };
  const Op same = [](const TensorList& in) { return TensorList{rms_norm(in[0], in[1], 0.1)}; };
  const Op twice = [](const TensorList& in) {
    return TensorList{rms_norm(in[0], in[1]) * in[0] + rms_norm(in[0])};
  };
  for (const Op& op : {weight, same, twice}) {
    CHECK(disagreement(op, {x, w}, how) == "");
    CHECK(disagreement(op, {x, test::strided(w)}, how) == "");
  }
  // Rows that start between two packs.
  const Op shifted = [](const TensorList& in) {
    return TensorList{rms_norm(in[0].alias({8, 24}, {24, 1}, 1))};
  };
  CHECK(disagreement(shifted, {random({9, 24}, 4)}, {.gradients = false}) == "");
}

TEST_CASE("rms_norm_residual: gradients through either output or both") {
  for (const Shape& s : kRmsNormShapes) {
    CAPTURE(to_string(s));
    const TensorList in{random(s, 1), random(s, 2), random({s.back()}, 3)};
    const auto run = [](const TensorList& i) { return rms_norm_residual(i[0], i[1], i[2]); };
    const Op both = [=](const TensorList& i) { return TensorList{run(i).y, run(i).sum}; };
    const Op product = [=](const TensorList& i) {
      const RmsNormResidual r = run(i);
      return TensorList{r.y * r.sum};
    };
    const Op y = [=](const TensorList& i) { return TensorList{run(i).y}; };
    const Op centred = [](const TensorList& i) {
      const RmsNormResidual r = rms_norm_residual(i[0], i[1], i[2], 1e-6, true);
      return TensorList{r.y * r.sum};
    };
    const Op sum = [](const TensorList& i) {
      return TensorList{rms_norm_residual(i[0], i[1]).sum};
    };
    // In bf16 the norm reads the rounded sum, which f64 does not round.
    const bool all_orders = s.numel() < 2000;
    const double terms = terms_of(s);
    for (Agreement how : {Agreement{{DType::f32, DType::f64}, 1, true, all_orders, terms},
                          Agreement{{DType::bf16}, 16, true, all_orders, terms}}) {
      for (const Op& op : {product, y, centred}) CHECK(disagreement(op, in, how) == "");
      CHECK(disagreement(sum, {in[0], in[1]}, how) == "");
      how.gradients = false;
      CHECK(disagreement(both, in, how) == "");
    }
  }
}

}  // namespace weft::rms_norm_test
