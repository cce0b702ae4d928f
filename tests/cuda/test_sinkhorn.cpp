#include <doctest/doctest.h>

#include "weft/autograd/sinkhorn.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::sinkhorn_test {
namespace {

using test::Agreement;
using test::disagreement;
using test::Op;
using test::random;

}  // namespace

TEST_CASE("sinkhorn: agrees with the CPU with and without padding") {
  const Op plain = [](const TensorList& in) { return TensorList{sinkhorn(in[0])}; };
  const Op padded = [](const TensorList& in) { return TensorList{sinkhorn(in[0], in[1])}; };
  const Op once = [](const TensorList& in) { return TensorList{sinkhorn(in[0], {}, 1)}; };
  // In f32 one device may stop a round earlier; the difference is then below the tolerance of the
  // rounds.
  const Agreement how{.tolerance = 5, .gradients = false};
  for (const Shape& s : {Shape{1, 1}, Shape{5, 4}, Shape{70, 33}, Shape{0, 4}}) {
    CAPTURE(to_string(s));
    CHECK(disagreement(plain, {random(s, 1)}, how) == "");
    CHECK(disagreement(once, {random(s, 2)}, how) == "");
  }
  const Tensor pad = Tensor::of({0, 1, 0, 0, 1}, {5}, DType::boolean);
  CHECK(disagreement(padded, {random({5, 6}, 3), pad}, how) == "");
  CHECK(disagreement(padded, {random({5, 6}, 3), Tensor::ones({5}, DType::boolean)}, how) == "");
}

}  // namespace weft::sinkhorn_test
