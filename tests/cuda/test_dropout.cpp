#include <doctest/doctest.h>

#include "weft/autograd/dropout.h"
#include "weft/autograd/elementwise.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::dropout_test {
namespace {

using test::different_bits;
using test::disagreement;
using test::kGpu;
using test::random;

}  // namespace

TEST_CASE("dropout: gives the CPU's bits at any start of the sequence") {
  for (const DType t : test::kFloating)
    for (const std::int64_t n : {0, 1, 7, 8, 64, 1027})
      for (const std::uint64_t first : {0u, 1u, 2u, 3u, 4u, 1'000'003u}) {
        CAPTURE(std::string(name(t)));
        CAPTURE(n);
        CAPTURE(first);
        const RandomKey key{5, (std::uint64_t{7} << 40) + 1, first};
        const Tensor x = random({n}, 1, t), g = x.to(kGpu);
        test::for_each_order([&] {
          CHECK(different_bits(dropout(g, 0.3, key).to(kCpu), dropout(x, 0.3, key)) == "");
        });
        CHECK(different_bits(dropout(g, 1, key).to(kCpu), dropout(x, 1, key)) == "");
      }
  // Starts between two packs.
  const Tensor x = random({65}, 1, DType::f32), part = x.to(kGpu).narrow(0, 1, 64);
  CHECK(different_bits(dropout(part, 0.5, {1, 2, 0}).to(kCpu),
                       dropout(x.narrow(0, 1, 64), 0.5, {1, 2, 0})) == "");
}

TEST_CASE("dropout: gradients equal the CPU's") {
  const auto op = [](const TensorList& in) { return TensorList{dropout(in[0], 0.4, {3, 4, 8})}; };
  for (const Shape& s : {Shape{1, 1}, Shape{3, 5}, Shape{2, 3, 37}, Shape{0, 4}, Shape{4, 64}}) {
    CHECK(disagreement(op, {random(s)}) == "");
    CHECK(disagreement(op, {test::strided(random(s))}) == "");
  }
}

}  // namespace weft::dropout_test
