#include <doctest/doctest.h>

#include <vector>

#include "weft/autograd/grouped_linear.h"
#include "weft/core/cuda.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::grouped_linear_test {
namespace {

using test::disagreement;
using test::kGpu;
using test::random;

Tensor rows_of(const std::vector<std::int64_t>& n) {
  return Tensor::from(std::span<const std::int64_t>(n), {static_cast<std::int64_t>(n.size())});
}

}  // namespace

TEST_CASE("grouped_linear: values and gradients on several streams with empty groups") {
  struct Case {
    std::vector<std::int64_t> rows;
    std::int64_t total, inputs, outputs;
  };
  for (const auto& [counts, total, inputs, outputs] :
       {Case{{3}, 3, 2, 4}, Case{{0, 5, 0}, 5, 7, 3}, Case{{0, 0}, 0, 3, 3},
        Case{{2, 0, 9, 1, 4, 0, 8, 3}, 27, 24, 16}}) {
    const Tensor rows = rows_of(counts);
    const auto groups = static_cast<std::int64_t>(counts.size());
    const auto op = [&](const TensorList& in) {
      const auto at = [&](int i) { return i < in.size() ? in[i] : Tensor(); };
      return TensorList{grouped_linear(in[0], in[1], at(2), rows, at(3))};
    };
    const Tensor x = random({total, inputs}, 1), w = random({groups, outputs, inputs}, 2);
    const Tensor b = random({groups, outputs}, 3), s = random({total}, 4);
    // cuBLASLt chooses the order of the sums, so there is only one order to test.
    CHECK(disagreement(op, {x, w}, {.tolerance = 4, .all_orders = false}) == "");
    CHECK(disagreement(op, {x, w, b}, {.tolerance = 4, .all_orders = false}) == "");
    CHECK(disagreement(op, {x, w, b, s}, {.tolerance = 4, .all_orders = false}) == "");
  }
}

TEST_CASE("grouped_linear: no host waits and the streams are reused") {
  const Tensor rows = rows_of({2, 3, 1, 2}), x = random({8, 4}, 1, DType::f32).to(kGpu);
  const Tensor w = random({4, 4, 4}, 2, DType::f32).to(kGpu);
  Tensor y = grouped_linear(x, w, {}, rows);
  const std::int64_t before = cuda::host_syncs();
  // Far more calls than the limit of streams: each call returns its streams.
  for (int i = 0; i < 100; ++i) y = grouped_linear(y, w, {}, rows);
  CHECK(cuda::host_syncs() == before);
}

}  // namespace weft::grouped_linear_test
