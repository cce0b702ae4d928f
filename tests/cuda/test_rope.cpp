#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/rope.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::rope_test {
namespace {

using test::disagreement;
using test::kGpu;
using test::random;

const Shape kRopeShapes[] = {{1, 1, 1, 2},  {1, 7, 1, 4},  {2, 5, 3, 6}, {2, 0, 3, 4},
                             {2, 5, 3, 16}, {1, 3, 2, 32}, {0, 5, 3, 4}};
constexpr std::int64_t kMaxT = 16;

}  // namespace

TEST_CASE("rope: outputs and gradients with f32 and f64 tables and an offset") {
  for (const Shape& s : kRopeShapes)
    for (const DType t : {DType::f32, DType::f64}) {
      CAPTURE(to_string(s));
      const RopeTables cpu = rope_tables(kMaxT, s[3], 100, t);
      const Tensor cos = cpu.cos.to(kGpu), sin = cpu.sin.to(kGpu);
      const auto turned = [&](const TensorList& in) {
        const bool gpu = in[0].device().is_cuda();
        return TensorList{rope(in[0], gpu ? cos : cpu.cos, gpu ? sin : cpu.sin, 3)};
      };
      CHECK(disagreement(turned, {random(s)}) == "");
      CHECK(disagreement(turned, {test::strided(random(s))}) == "");
    }
}

TEST_CASE("rope: positions per token, shared by the batch or not") {
  for (const Shape& s : kRopeShapes) {
    CAPTURE(to_string(s));
    const RopeTables cpu = rope_tables(kMaxT, s[3], 100, DType::f64);
    const Tensor cos = cpu.cos.to(kGpu), sin = cpu.sin.to(kGpu);
    const auto turned = [&](const TensorList& in) {
      const bool gpu = in[0].device().is_cuda();
      return TensorList{rope(in[0], gpu ? cos : cpu.cos, gpu ? sin : cpu.sin, in[1])};
    };
    CHECK(disagreement(turned, {random(s), test::random_in({s[1]}, 0, 16, 5, DType::i32)}) == "");
    CHECK(disagreement(turned, {random(s), test::random_in({s[0], s[1]}, 0, 16, 6, DType::i32)}) ==
          "");
  }
}

TEST_CASE("rope_packed: some of the heads in place and out of place") {
  for (const std::int64_t d : {4, 16, 32}) {
    const RopeTables cpu = rope_tables(kMaxT, d, 100, DType::f64);
    const Tensor cos = cpu.cos.to(kGpu), sin = cpu.sin.to(kGpu);
    for (const std::int64_t heads : {0, 2, 5}) {
      const auto turned = [&](const TensorList& in) {
        const bool gpu = in[0].device().is_cuda();
        const Tensor &c = gpu ? cos : cpu.cos, &s = gpu ? sin : cpu.sin;
        return TensorList{rope_packed(in[0], heads, c, s), rope_packed(mul(in[0], 2), heads, c, s)};
      };
      CHECK(disagreement(turned, {random({2, 5, 5, d})}, {.all_orders = d == 16}) == "");
    }
  }
}

TEST_CASE("rope: the next wait throws the CPU's Error for a bad position") {
  const RopeTables r = rope_tables(kMaxT, 4);
  const Tensor x = random({1, 3, 2, 4}, 1, DType::f32);
  for (const double bad : {16.0, -1.0, 2e9}) {
    const Tensor positions = Tensor::of({0, bad, 2}, {3}, DType::i32);
    test::for_each_order([&] {
      rope(x.to(kGpu), r.cos.to(kGpu), r.sin.to(kGpu), positions.to(kGpu));
      CHECK(test::error_of([] { cuda::synchronize(); }) ==
            test::error_of([&] { rope(x, r.cos, r.sin, positions); }));
    });
  }
}

}  // namespace weft::rope_test
