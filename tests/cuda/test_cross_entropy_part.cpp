#include <doctest/doctest.h>

#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/core/dispatch.h"
#include "weft/core/kernels/cross_entropy_part.h"
#include "weft/tests/cuda/gpu.h"

namespace weft {
namespace {

using test::disagreement;
using test::Op;
using test::random;

Tensor targets_for(std::int64_t rows, std::int64_t classes, DType dtype) {
  std::vector<std::int64_t> t;
  for (std::int64_t r = 0; r < rows; ++r)
    t.push_back(r % 5 == 3 ? -100 : r == 0 ? classes - 1 : r == 1 ? 0 : r * 977 % classes);
  return Tensor::from(std::span<const std::int64_t>(t), {rows}).to(dtype);
}

DType real_of(const Tensor& t) { return t.dtype() == DType::f64 ? DType::f64 : DType::f32; }

// The rows of two ranks, joined, and the gradient of each rank: times the number of classes, as
// that of a wide row would hide behind any tolerance.
Op whole_loss(std::int64_t first, std::int64_t all, double smoothing, bool mean) {
  return [=](const TensorList& in) {
    const NoGradGuard off;
    const Tensor &a = in[0], &b = in[1], &targets = in[2];
    const std::int64_t rows = targets.numel();
    const Tensor parts = Tensor::empty({2, rows, 4}, real_of(a), a.device());
    const ClassRange ranges[] = {{0, all}, {first, all}};
    for (int w = 0; w < 2; ++w)
      dispatch<cpu::cross_entropy_part_stats, cuda::cross_entropy_part_stats>(
          w ? b : a, targets, -100, ranges[w], smoothing > 0, parts.select(0, w));
    const Tensor losses = Tensor::empty({rows}, real_of(a), a.device());
    const Tensor stats = Tensor::empty({rows, 2}, real_of(a), a.device());
    const Tensor hits = Tensor::empty({rows}, DType::boolean, a.device());
    dispatch<cpu::cross_entropy_part_merge, cuda::cross_entropy_part_merge>(
        parts, targets, -100, all, smoothing, losses, stats, hits);
    Tensor count, dy;
    if (mean)
      count = Tensor::full({1}, 3, DType::i64).to(a.device());
    else
      dy = losses;  // some number for each row
    TensorList out{losses, hits};
    for (int w = 0; w < 2; ++w) {
      const Tensor dx = (w ? b : a).clone();
      dispatch<cpu::cross_entropy_part_bwd, cuda::cross_entropy_part_bwd>(
          dx, targets, stats, dy, count, -100, ranges[w], smoothing, dx);
      out.push_back(dx * static_cast<double>(all));
    }
    return out;
  };
}

}  // namespace

TEST_CASE("cross entropy in parts: statistics, their sum, and gradients as on the CPU") {
  for (const auto& [first, all] :
       {std::pair<std::int64_t, std::int64_t>{6, 11}, {37, 64}, {1025, 2050}, {9001, 9003}, {5, 5}})
    for (const double smoothing : {0.0, 0.1}) {
      CAPTURE(all);
      const std::int64_t rows = all < 100 ? 7 : 3;
      const TensorList in{random({rows, first}, 1), random({rows, all - first}, 2),
                          targets_for(rows, all, all == 11 ? DType::i32 : DType::i64)};
      CHECK(disagreement(whole_loss(first, all, smoothing, smoothing > 0), in,
                         {.gradients = false, .all_orders = all < 100}) == "");
    }
}

TEST_CASE("cross entropy in parts: rows of -inf, and none") {
  const Tensor down = Tensor::full({3, 4}, -std::numeric_limits<double>::infinity(), DType::f64);
  const Op op = whole_loss(4, 8, 0, true);
  CHECK(disagreement(op, {down, random({3, 4}, 2), targets_for(3, 8, DType::i64)},
                     {.gradients = false}) == "");
  CHECK(disagreement(op, {down, down, targets_for(3, 8, DType::i64)}, {.gradients = false}) == "");
  CHECK(disagreement(op, {random({0, 4}, 2), random({0, 4}, 2), Tensor::empty({0}, DType::i64)},
                     {.gradients = false}) == "");
}

}  // namespace weft
