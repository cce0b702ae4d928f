#include <doctest/doctest.h>

#include "weft/autograd/linear.h"
#include "weft/autograd/matmul.h"
#include "weft/core/gemm.h"
#include "weft/cuda/gemm_plan.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::gemm_test {
namespace {

namespace lt = cuda::lt;
using test::disagreement;
using test::kGpu;
using test::mismatch;
using test::random;

TensorList product(const TensorList& in) { return {matmul(in[0], in[1])}; }
TensorList layer(const TensorList& in) {
  return {linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor())};
}

// cuBLASLt chooses the order of the products, so there is only one order to test.
constexpr bool kOnce = false;

}  // namespace

TEST_CASE("matmul: shapes, batches, broadcasting, transposes and strides") {
  struct Case {
    Shape a, b;
  };
  const Case cases[] = {
      {{1, 1}, {1, 1}},    {{3, 5}, {5, 7}},    {{33, 17}, {17, 9}},       {{2, 3, 5}, {2, 5, 4}},
      {{2, 3, 5}, {5, 4}}, {{3, 5}, {2, 5, 4}}, {{2, 1, 3, 5}, {4, 5, 2}}, {{0, 5}, {5, 3}},
      {{3, 0}, {0, 4}},    {{7}, {7}},          {{2, 3, 4, 5}, {3, 5, 6}}};
  for (const auto& [a, b] : cases) {
    CAPTURE(to_string(a));
    CAPTURE(to_string(b));
    CHECK(disagreement(product, {random(a, 1), random(b, 2)},
                       {.tolerance = 4, .all_orders = kOnce}) == "");
    if (a.size() < 2 || b.size() < 2) continue;
    const Tensor at = random(a, 1).t().contiguous().t(), bt = random(b, 2).t().contiguous().t();
    CHECK(disagreement(product, {at, bt}, {.tolerance = 4, .all_orders = kOnce}) == "");
    CHECK(disagreement(product, {test::strided(random(a, 1)), random(b, 2)},
                       {.tolerance = 4, .all_orders = kOnce}) == "");
  }
  const auto square = [](const TensorList& in) { return TensorList{matmul(in[0], in[0])}; };
  CHECK(disagreement(square, {random({6, 6})}, {.tolerance = 4, .all_orders = kOnce}) == "");
}

TEST_CASE("linear: with and without bias and odd widths") {
  for (const Shape& s : {Shape{4, 8}, Shape{2, 3, 5}, Shape{1, 7}, Shape{130, 24}, Shape{0, 4}}) {
    CAPTURE(to_string(s));
    const Tensor x = random(s, 1), w = random({11, s.back()}, 2), b = random({11}, 3);
    CHECK(disagreement(layer, {x, w}, {.tolerance = 4, .all_orders = kOnce}) == "");
    CHECK(disagreement(layer, {x, w, b}, {.tolerance = 4, .all_orders = kOnce}) == "");
  }
}

TEST_CASE("gemm: a bf16 product is accumulated into an f32 sum") {
  const Tensor a = random({5, 40}, 1, DType::bf16), b = random({40, 6}, 2, DType::bf16);
  const Tensor want = random({5, 6}, 3, DType::f32), sum = want.to(kGpu);
  gemm(a, b, want, true);
  gemm(a.to(kGpu), b.to(kGpu), sum, true);
  CHECK(mismatch(sum.to(kCpu), want, 1e-5) == "");
}

TEST_CASE("gemm: views that start at an odd element") {
  const Tensor a = random({6, 9}, 1, DType::f32), b = random({9, 8}, 2, DType::f32);
  const Tensor ga = a.to(kGpu), gb = b.to(kGpu);
  CHECK(mismatch(matmul(ga.narrow(1, 1, 5), gb.narrow(0, 3, 5).narrow(1, 1, 3)).to(kCpu),
                 matmul(a.narrow(1, 1, 5), b.narrow(0, 3, 5).narrow(1, 1, 3)), 1e-5) == "");
}

TEST_CASE("gemm: an unsupported epilogue is reported and changes nothing") {
  const auto asked = [](DType t, std::int64_t n, lt::Epilogue epilogue) {
    const Tensor a = random({4, 8}, 1, t).to(kGpu), b = random({8, n}, 2, t).to(kGpu);
    const Tensor out = Tensor::full({4, n}, 7, t, kGpu), bias = Tensor::zeros({n}, t, kGpu);
    const Tensor aux = random({4, n}, 3, t).to(kGpu);
    GemmShape g;
    g.m = 4;
    g.n = g.ldb = g.ldc = n;
    g.k = g.lda = 8;
    cuda::Product p = cuda::by_column(g, a, out);
    p.epilogue = epilogue;
    p.ld_aux = n;
    const bool done = cuda::try_product(
        p, {.a = b.raw(), .b = a.raw(), .d = out.raw(), .bias = bias.raw(), .aux = aux.raw()});
    if (!done) CHECK(mismatch(out.to(kCpu), Tensor::full({4, n}, 7, t), 0) == "");
    return done;
  };
  for (const auto e : {lt::Epilogue::gelu_aux_bias, lt::Epilogue::dgelu_bias_gradient}) {
    CHECK(asked(DType::bf16, 16, e));
    CHECK_FALSE(asked(DType::bf16, 12, e));  // rows of aux start at multiples of 8 elements
    CHECK_FALSE(asked(DType::f64, 16, e));
  }
  CHECK_FALSE(asked(DType::f64, 16, lt::Epilogue::bias));
}

TEST_CASE("gemm: nothing waits for the GPU") {
  const Tensor a = random({4, 4}, 1, DType::f32).to(kGpu);
  const std::int64_t before = cuda::host_syncs();
  const Tensor y = matmul(a, matmul(a, a));
  CHECK(cuda::host_syncs() == before);
}

}  // namespace weft::gemm_test
