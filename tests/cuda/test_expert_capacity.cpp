#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/expert_capacity.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::expert_capacity_test {
namespace {

using test::different_bits;
using test::disagreement;
using test::kGpu;
using test::Op;
using test::random;

}  // namespace

TEST_CASE("expert_capacity: keeps the same slots as the CPU including ties") {
  for (const DType t : {DType::f32, DType::f64})
    for (const DropPolicy policy : {DropPolicy::probability, DropPolicy::position})
      for (const std::int64_t tokens : {1, 40, 300})
        for (const bool tied : {false, true}) {
          Routing r = route(random({tokens, 6}, 3, t), {}, {.topk = 2});
          if (tied)  // quarters: many equal values
            r.probs = div(mul(r.probs, 4).to(DType::i64).to(t), 4);
          r.experts.data<std::int64_t>()[0] = -1;
          const auto compare = [&](auto limit) {
            const Routing want = limit(r), on_gpu{r.probs.to(kGpu), r.experts.to(kGpu)};
            const auto once = [&] {
              const Routing got = limit(on_gpu);
              CHECK(different_bits(got.experts.to(kCpu), want.experts) == "");
              CHECK(different_bits(got.probs.to(kCpu), want.probs) == "");
            };
            if (tokens < 100)
              test::for_each_order(once);
            else
              once();
          };
          for (const std::int64_t capacity : {std::int64_t{0}, std::int64_t{1}, tokens / 4})
            compare([&](const Routing& in) { return limit_capacity(in, 6, capacity, policy); });
          for (const double factor : {0.1, 0.75})
            compare(
                [&](const Routing& in) { return limit_capacity_factor(in, 6, factor, policy); });
        }
}

TEST_CASE("expert_capacity: gradients equal the CPU's") {
  const Op op = [](const TensorList& in) {
    const Routing r = route(in[0], {}, {.topk = 2});
    return TensorList{limit_capacity(r, 4, 3).probs};
  };
  CHECK(disagreement(op, {random({12, 4}, 5)}, {.dtypes = {DType::f32, DType::f64}}) == "");
}

}  // namespace weft::expert_capacity_test
