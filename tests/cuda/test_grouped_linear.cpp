#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <string>
#include <thread>
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

TEST_CASE("grouped_linear: 64 threads with a stream each share the side streams") {
  constexpr int kThreads = 64;
  const Tensor rows = rows_of({2, 3, 1, 2}), x = random({8, 4}, 1, DType::f32);
  const Tensor w = random({4, 4, 4}, 2, DType::f32), want = grouped_linear(x, w, {}, rows);
  std::barrier together(kThreads);
  std::vector<std::string> wrong(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      wrong[static_cast<std::size_t>(i)] = test::error_of([&] {
        cuda::Stream own = cuda::Stream::take(kGpu);
        {
          const cuda::StreamScope scope(own);
          const Tensor gx = x.to(kGpu), gw = w.to(kGpu);
          together.arrive_and_wait();
          Tensor y = gx;
          for (int k = 0; k < 3; ++k) y = grouped_linear(gx, gw, {}, rows);
          check(test::mismatch(y.to(kCpu), want, 1e-5) == "", "wrong values");
        }
        own.synchronize();
        own.give_back();
      });
      if (wrong[static_cast<std::size_t>(i)] != "no error") together.arrive_and_drop();
    });
  for (std::thread& t : threads) t.join();
  CHECK(std::count(wrong.begin(), wrong.end(), "no error") == kThreads);
}

}  // namespace weft::grouped_linear_test
