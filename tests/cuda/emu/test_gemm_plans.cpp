// What happens when cuBLASLt refuses a product, and which launches wait for one another.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "weft/autograd/grouped_linear.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/matmul.h"
#include "weft/tests/cuda/emu/lt_library.h"

namespace weft::gemm_plans_test {
namespace {

using test::error_of;
using test::kGpu;
using test::mismatch;
using test::random;
using test::refuse_epilogues;
using test::status_of_epilogues;
using test::with_epilogue;

constexpr Device kSecond{Device::Kind::cuda, 1};

std::atomic<int> inside{0}, met{0};

// The third product fails.
std::atomic<int> products{0};
int refuse_third(std::uint32_t) { return ++products == 3 ? 14 : 0; }

// Two calls must be inside at the same time; gives up after some seconds.
int wait_for_another(std::uint32_t) {
  ++inside;
  for (int i = 0; i < 5000 && inside < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (inside >= 2) ++met;
  return 0;
}

}  // namespace

TEST_CASE("gemm plans: an epilogue that only the launch refuses runs in parts") {
  const TensorList want = test::mlp_results(kCpu);
  for (const int status : {7, 8, 15}) {
    const test::LtLibrary library;
    status_of_epilogues = status;
    emu::control.at_matmul = refuse_epilogues;
    with_epilogue = 0;
    for (int run = 0; run < 2; ++run) {
      const TensorList got = test::mlp_results(kGpu);
      for (int i = 0; i < want.size(); ++i) CHECK(mismatch(got[i], want[i], 1e-4) == "");
      CHECK(with_epilogue.load() == test::kMlpEpilogues);  // each once, and never again
    }
  }
  const test::LtLibrary library;
  status_of_epilogues = 14;  // an internal error of the library is not a refusal
  emu::control.at_matmul = refuse_epilogues;
  const Tensor x = random({4, 8}, 1, DType::f32).to(kGpu), b = random({8}, 2, DType::f32).to(kGpu);
  CHECK(error_of([&] {
          (void)linear(x, random({8, 8}, 3, DType::f32).to(kGpu), b);
        }) == "cuda: cublasLtMatmul failed with status 14 for a product of 4 x 8 x 8, batch 1");
}

TEST_CASE("gemm plans: the streams of groups are joined when a product fails") {
  const test::LtLibrary library;
  const std::int64_t counts[] = {2, 3, 1, 2};
  const Tensor rows = Tensor::from(std::span<const std::int64_t>(counts), {4});
  const Tensor x = random({8, 4}, 1, DType::f32).to(kGpu),
               w = random({4, 4, 4}, 2, DType::f32).to(kGpu);
  cuda::synchronize(kGpu);
  products = 0;
  emu::control.at_matmul = refuse_third;
  CHECK(error_of([&] { (void)grouped_linear(x, w, {}, rows); }).find("status 14") !=
        std::string::npos);
  // Takes the memory of the result, into which another stream was to write.
  const Tensor next = Tensor::full({8, 4}, 7, DType::f32, kGpu);
  (void)next.to(kCpu);
  cuda::synchronize(kGpu);
  CHECK(mismatch(next.to(kCpu), Tensor::full({8, 4}, 7, DType::f32), 0) == "");
}

TEST_CASE("gemm plans: two devices launch at the same time") {
  const test::LtLibrary library;
  inside = met = 0;
  emu::control.at_matmul = wait_for_another;
  const auto multiply = [](Device device) {
    const Tensor a = Tensor::ones({4, 4}, DType::f32).to(device);
    CHECK(mismatch(matmul(a, a).to(kCpu), Tensor::full({4, 4}, 4, DType::f32), 0) == "");
  };
  std::thread other(multiply, kSecond);
  multiply(kGpu);
  other.join();
  CHECK(met.load() == 2);
}

}  // namespace weft::gemm_plans_test
