#include <doctest/doctest.h>

#include "weft/autograd/recurrent.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::recurrent_test {
namespace {

using test::disagreement;
using test::random;

struct Case {
  std::int64_t batch, tokens, units;
};

DType real_of(const Tensor& t) { return t.dtype() == DType::f64 ? DType::f64 : DType::f32; }

// in: gates, weight, bias and two states, which are converted to the dtype of states.
test::Op op_of(std::int64_t gates, const Tensor& cu = {}) {
  return [=](const TensorList& in) {
    const DType real = real_of(in[0]);
    if (gates == 3) {
      const GruOutput out =
          gru(in[0], in[1], in[2], {.state = cast(in[3], real), .cu_seqlens = cu});
      return TensorList{out.y, out.state};
    }
    const LstmOutput out = lstm(
        in[0], in[1], in[2], {.state = {cast(in[3], real), cast(in[4], real)}, .cu_seqlens = cu});
    return TensorList{out.y, out.state.h, out.state.c};
  };
}

TensorList operands(const Case& c, std::int64_t gates, std::int64_t sequences) {
  TensorList in{random({c.batch, c.tokens, gates * c.units}, 1),
                random({gates * c.units, c.units}, 2), random({gates * c.units}, 3),
                random({sequences, c.units}, 4)};
  if (gates == 4) in.push_back(random({sequences, c.units}, 5));
  return in;
}

}  // namespace

TEST_CASE("recurrent: outputs and gradients equal the CPU's") {
  const Case cases[] = {{1, 1, 1}, {2, 5, 3}, {3, 2, 130}, {0, 4, 3}, {3, 0, 4}};
  for (const std::int64_t gates : {3, 4})
    for (const Case& c : cases) {
      CAPTURE(gates);
      CAPTURE(c.units);
      CHECK(disagreement(op_of(gates), operands(c, gates, c.batch), {.tolerance = 4}) == "");
    }
}

TEST_CASE("recurrent: packed rows, boundaries on either device, no bias or state") {
  const Tensor cu = Tensor::of({0, 3, 3, 4, 9}, {5}, DType::i32);
  for (const std::int64_t gates : {3, 4}) {
    CAPTURE(gates);
    const TensorList in = operands({1, 9, 5}, gates, 4);
    CHECK(disagreement(op_of(gates, cu), in, {.tolerance = 4}) == "");
    TensorList with_cu = in;
    with_cu.push_back(cu);
    const test::Op on_device = [=](const TensorList& x) {
      return op_of(gates, x[x.size() - 1])(x);
    };
    CHECK(disagreement(on_device, with_cu, {.tolerance = 4}) == "");
  }
  const test::Op bare_gru = [](const TensorList& in) {
    return TensorList{gru(in[0], in[1], {}).y};
  };
  const test::Op bare_lstm = [](const TensorList& in) {
    return TensorList{lstm(in[0], in[1], {}).state.c};
  };
  CHECK(disagreement(bare_gru, {random({2, 3, 12}, 1), random({12, 4}, 2)}, {.tolerance = 4}) ==
        "");
  CHECK(disagreement(bare_lstm, {random({2, 3, 16}, 1), random({16, 4}, 2)}, {.tolerance = 4}) ==
        "");
}

}  // namespace weft::recurrent_test
