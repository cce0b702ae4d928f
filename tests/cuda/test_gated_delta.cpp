#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/gated_delta.h"
#include "weft/autograd/view.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::gated_delta_test {
namespace {

using test::Agreement;
using test::disagreement;
using test::random;
using test::random_in;

// The gates are f32 where q, k and v are bf16. They are rounded first, so that every dtype gets the
// same gates.
GatedDelta run(const TensorList& in, const GatedDeltaOptions& o = {}) {
  const DType real = in[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
  return gated_delta(in[0], in[1], in[2], cast(in[3], real), cast(in[4], real), o);
}

TensorList operands(std::int64_t batch, std::int64_t tokens, std::int64_t key_heads,
                    std::int64_t value_heads, std::int64_t key_dim, std::int64_t value_dim,
                    double decay = -0.3) {
  const double length = 1 / std::sqrt(static_cast<double>(key_dim));
  const Shape keys{batch, tokens, key_heads, key_dim}, gates{batch, tokens, value_heads};
  return {mul(random(keys, 1), length),
          mul(random(keys, 2), length),
          random({batch, tokens, value_heads, value_dim}, 3),
          random_in(gates, decay, 0, 4),
          random_in(gates, 0, 1, 5),
          random({batch, value_heads, key_dim, value_dim}, 6)};
}

}  // namespace

TEST_CASE("gated_delta: outputs and gradients over chunks and wide heads") {
  const TensorList shapes[] = {operands(1, 1, 1, 1, 1, 1), operands(2, 5, 1, 2, 3, 4),
                               operands(1, 66, 1, 1, 8, 5), operands(1, 3, 1, 1, 70, 66),
                               operands(1, 0, 1, 2, 3, 4)};
  for (const TensorList& in : shapes) {
    CAPTURE(to_string(in[2].shape()));
    const Agreement how{.tolerance = 4, .all_orders = in[2].numel() < 100};
    const test::Op y = [](const TensorList& x) { return TensorList{run(x).y}; };
    CHECK(disagreement(y, {in[0], in[1], in[2], in[3], in[4]}, how) == "");
    const test::Op both = [](const TensorList& x) {
      const DType real = x[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
      const GatedDelta r = run(x, {.scale = 0.7, .state = cast(x[5], real)});
      return TensorList{cast(r.y, real).sum() * r.state};
    };
    Agreement loose = how;
    loose.tolerance = 60;  // a product with the sum of all outputs
    CHECK(disagreement(both, in, loose) == "");
  }
}

TEST_CASE("gated_delta: a few tokens without a tape, with and without a state") {
  for (const std::int64_t tokens : {1, 4, 5})
    for (const std::int64_t width : {3, 40}) {
      CAPTURE(tokens);
      CAPTURE(width);
      const TensorList in = operands(2, tokens, 1, 2, 11, width);
      const test::Op op = [](const TensorList& x) {
        const DType real = x[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
        const GatedDelta fresh = run(x), after = run(x, {.state = cast(x[5], real)});
        return TensorList{fresh.y, fresh.state, after.y, after.state};
      };
      CHECK(disagreement(op, in, {.tolerance = 4, .gradients = false}) == "");
    }
}

TEST_CASE("gated_delta: many chunks and gates from almost no decay to full decay") {
  // exp(-120) is 0 in f32, so nothing passes across such a token, forward or backward. The
  // remaining gradient is small relative to its terms: a difference of gate sums in the thousands.
  for (const double decay : {-1e-4, -3.0, -120.0})
    for (const std::int64_t tokens : {130, 257}) {
      CAPTURE(decay);
      CAPTURE(tokens);
      const TensorList in = operands(1, tokens, 1, 2, 6, 5, decay);
      const test::Op both = [](const TensorList& x) {
        const DType real = x[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
        const GatedDelta r = run(x, {.state = cast(x[5], real)});
        return TensorList{r.y, r.state};
      };
      const double terms = decay < -1 ? 1 : 0;
      CHECK(disagreement(both, in, {.tolerance = 8, .all_orders = false, .terms = terms}) == "");
    }
}

TEST_CASE("gated_delta: resets and decays of any size") {
  for (const double reset : {-std::numeric_limits<double>::infinity(), -1e30}) {
    CAPTURE(reset);
    const TensorList in = operands(1, 70, 1, 2, 3, 4);
    for (const std::int64_t token : {0, 5, 6, 64}) in[3].narrow(1, token, 1).fill_(reset);
    const test::Op both = [](const TensorList& x) {
      const DType real = x[0].dtype() == DType::f64 ? DType::f64 : DType::f32;
      const GatedDelta r = run(x, {.state = cast(x[5], real)});
      return TensorList{r.y, r.state};
    };
    CHECK(disagreement(both, in, {.tolerance = 8, .all_orders = false}) == "");
  }
}

TEST_CASE("gated_delta: packed sequences equal the CPU's") {
  const Tensor cu = Tensor::of({0, 3, 3, 68, 70}, {5}, DType::i32);
  const TensorList in = operands(1, 70, 1, 2, 4, 3);
  const test::Op packed = [=](const TensorList& x) {
    return TensorList{run(x, {.cu_seqlens = cu}).y};
  };
  CHECK(disagreement(packed, {in[0], in[1], in[2], in[3], in[4]},
                     {.tolerance = 4, .all_orders = false}) == "");
}

}  // namespace weft::gated_delta_test
