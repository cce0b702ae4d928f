#include <doctest/doctest.h>

#include "weft/core/random.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::random_test {
namespace {

using test::different_bits;
using test::kEveryDType;
using test::kGpu;

const RandomKey kKeys[] = {{5, 6, 0}, {5, (std::uint64_t{3} << 40) + 1, 1'000'003}, {7, 8, 2}};

using Draw = std::function<void(const Tensor&, const RandomKey&)>;

// The same draw on both devices.
std::string disagreement_of(const Draw& draw, DType t, const RandomKey& key, double tol) {
  for (const std::int64_t n : {0, 1, 5, 1031}) {
    const Tensor cpu = Tensor::empty({n}, t), gpu = Tensor::empty({n}, t, kGpu);
    draw(cpu, key);
    draw(gpu, key);
    if (const std::string d = test::mismatch(gpu.to(kCpu), cpu, tol); !d.empty()) return d;
  }
  return "";
}

}  // namespace

TEST_CASE("random: uniform, Bernoulli and truncated normal numbers have the CPU's bits") {
  for (const RandomKey& key : kKeys)
    for (const DType t : kEveryDType) {
      CAPTURE(std::string(name(t)));
      test::for_each_order([&] {
        CHECK(
            disagreement_of([](const Tensor& x, const RandomKey& k) { uniform_(x, k, 0.1, 77.7); },
                            t, key, 0) == "");
        CHECK(disagreement_of([](const Tensor& x, const RandomKey& k) { uniform_(x, k); }, t, key,
                              0) == "");
        CHECK(disagreement_of(
                  [](const Tensor& x, const RandomKey& k) { uniform_(x, k, -1e12, 1e12); }, t, key,
                  0) == "");
        CHECK(disagreement_of([](const Tensor& x, const RandomKey& k) { bernoulli_(x, k, 0.3); }, t,
                              key, 0) == "");
      });
      CHECK(disagreement_of(
                [](const Tensor& x, const RandomKey& k) { truncated_normal_(x, k, 2, 1, 0.5, 3); },
                t, key, 0) == "");
    }
}

TEST_CASE("random: normal numbers equal the CPU's except for the last digits") {
  for (const RandomKey& key : kKeys)
    for (const auto& [t, tol] :
         {std::pair{DType::f64, 1e-14}, {DType::f32, 2e-7}, {DType::bf16, 8e-3}})
      test::for_each_order([&, dtype = t, tolerance = tol] {
        CHECK(disagreement_of([](const Tensor& x, const RandomKey& k) { normal_(x, k, 1, 2); },
                              dtype, key, tolerance) == "");
      });
}

TEST_CASE("random: drawing on a GPU counts as a write and never makes the host wait") {
  const Tensor t = Tensor::zeros({4, 5}, DType::f32, kGpu);
  const std::int64_t before = cuda::host_syncs();
  const auto version = t.version();
  normal_(t, {1, 2, 0}, 0, 1);
  CHECK(t.version() > version);
  truncated_normal_(t, {1, 2, 0}, 0, 1, -2, 2);
  uniform_(t, {1, 2, 0});
  CHECK(cuda::host_syncs() == before);
  CHECK_THROWS_AS(normal_(t.transpose(0, 1), {1, 2, 0}), Error);
}

TEST_CASE("random: multinomial gives the CPU's draws on the device of the weights") {
  const Tensor weights = Tensor::of({1, 0, 3, 4, 0, 5}, {2, 3});
  const Tensor drawn = multinomial(weights.to(kGpu), 50, {1, 2, 0});
  CHECK(drawn.device() == kGpu);
  CHECK(different_bits(drawn.to(kCpu), multinomial(weights, 50, {1, 2, 0})) == "");
}

}  // namespace weft::random_test
