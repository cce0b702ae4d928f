#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/matmul.h"
#include "weft/core/cpu/product.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/gemm.h"
#include "weft/core/parallel.h"
#include "weft/tests/simd_tables.h"
#include "weft/tests/support.h"

namespace weft::linear_test {

namespace {

Tensor op(const TensorList& in) { return linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor()); }

// In f64, from two other ops.
Tensor composed(const Tensor& x, const Tensor& w, const Tensor& b) {
  const Tensor y = matmul(x.to(DType::f64), w.to(DType::f64).t());
  return b.defined() ? add(y, b.to(DType::f64)) : y;
}

TensorList inputs(const Shape& x, std::int64_t n, DType t = DType::f64) {
  return {test::random(x, 1, t), test::random({n, x.back()}, 2, t), test::random({n}, 3, t)};
}

// One row, 1-D, odd sizes, three axes, wider than a block, no rows, no inputs, no outputs.
const struct {
  Shape x;
  std::int64_t n;
} kCases[] = {{{1, 1}, 1},    {{5}, 3},    {{3, 5}, 7}, {{2, 3, 5}, 4},
              {{4, 70}, 257}, {{0, 4}, 3}, {{3, 0}, 2}, {{3, 2}, 0}};

}  // namespace

TEST_CASE("linear: agrees with matmul and add in f64") {
  for (const auto& [x, n] : kCases)
    for (DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      CAPTURE(message("x {}, n {}, {}", x, n, t));
      const TensorList in = inputs(x, n, t);
      const double tol = 4 * test::tolerance(t);
      const Tensor y = op(in);
      CHECK(y.dtype() == t);
      CHECK(test::mismatch(y, composed(in[0], in[1], in[2]), tol) == "");
      CHECK(test::mismatch(linear(in[0], in[1]), composed(in[0], in[1], {}), tol) == "");
      CHECK(test::mismatch(linear(test::strided(in[0]), test::strided(in[1]), test::strided(in[2])),
                           composed(in[0], in[1], in[2]), tol) == "");
    }
}

TEST_CASE("linear: narrow f32 rows, where one kernel computes product and bias") {
  for (const std::int64_t m : {63, 64, 131})
    for (const std::int64_t n : {1, 16, 31, 70})
      for (const std::int64_t k : {1, 3, 130, 256, 257}) {
        CAPTURE(message("m {}, n {}, k {}", m, n, k));
        const Tensor x = test::random({m, k}, 1, DType::f32),
                     w = test::random({n, k}, 2, DType::f32);
        const Tensor b = test::random({n}, 3, DType::f32);
        // Up to 257 products of size 1, so sums of about 16; each partial sum is rounded.
        const Tensor want = linear(x.to(DType::f64), w.to(DType::f64), b.to(DType::f64));
        const Tensor y = linear(x, w, b);
        CHECK(test::mismatch(y, want, 1e-4) == "");
        CHECK(test::mismatch(linear(x, w, test::strided(b)), want, 1e-4) == "");
        // Products by oneDNN are cut by the number of threads.
        const bool same = cpu::gemm_engine() == cpu::ProductEngine::packed;
        for (const int t : {1, 2, 4}) {
          const test::RestoreThreads restore(t);
          if (same) CHECK(test::mismatch(linear(x, w, b), y, 0) == "");
        }
      }
}

TEST_CASE("linear: up to eight rows are dot products, with the bits of each row alone") {
  const test::RestoreKernels restore;
  const std::int64_t n = 301, k = 603;
  const bool has_library = test::error_of([] { cpu::set_gemm_engine("onednn"); }) == "no error";
  for (const char* const engine : {"weft", "onednn"})
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const std::int64_t m : {1, 2, 3, 4, 7, 8, 9}) {
        if (engine[0] == 'o' && !has_library) continue;
        cpu::set_gemm_engine(engine);
        CAPTURE(message("{} rows of {}, {}", m, t, engine));
        const Tensor w = test::random({n, k}, 2, t), x = test::random({m, k}, 1, t);
        const Tensor b = test::random({n}, 3, t), y = linear(x, w, b);
        CHECK(test::mismatch(y, linear(x.to(DType::f64), w.to(DType::f64), b.to(DType::f64)),
                             t == DType::f32 ? 2e-4 : test::tolerance(t)) == "");
        const bool dots = m == 1 || (m <= 8 && simd().panels<float>().fast);
        CHECK(cpu::Product<float>{nullptr, nullptr, nullptr, m, n, k, k, k, n, false, true, false}
                  .has_dot_products() == dots);
        if (!dots) continue;
        CHECK(!fuses_bias(x, w, y));
        for (const int threads : {1, 2, 4}) {
          const test::RestoreThreads restore_threads(threads);
          CHECK(test::different_bits(linear(x, w, b), y) == "");
        }
        for (std::int64_t i = 0; i < m; ++i)
          CHECK(test::different_bits(linear(x.narrow(0, i, 1), w, b), y.narrow(0, i, 1)) == "");
      }
}

TEST_CASE("linear: rows of a layer with one output have the bits of each alone") {
  const std::int64_t k = 5000;  // eight rows are no small product
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(t);
    const Tensor x = test::random({8, k}, 1, t), w = test::random({1, k}, 2, t), y = linear(x, w);
    CHECK(test::mismatch(y, linear(x.to(DType::f64), w.to(DType::f64)),
                         t == DType::f32 ? 1e-3 : test::tolerance(t)) == "");
    for (std::int64_t i = 0; simd().panels<float>().fast && i < 8; ++i)
      CHECK(test::different_bits(linear(x.narrow(0, i, 1), w), y.narrow(0, i, 1)) == "");
  }
}

TEST_CASE("linear: bf16 rounds the sum of product and bias once") {
  // 256 + 1 + 1: each addition alone would round back to 256 in bf16.
  const Tensor x = Tensor::ones({1, 2}, DType::bf16), w = Tensor::ones({1, 2}, DType::bf16);
  CHECK(linear(x, w, Tensor::full({1}, 256, DType::bf16)).item() == 258);
}

TEST_CASE("linear: gradients match finite differences twice") {
  for (const auto& [x, n] : kCases) {
    if (x.back() > 10) continue;
    CAPTURE(message("x {}, n {}", x, n));
    const TensorList in = inputs(x, n);
    CHECK(gradcheck(op, in, {.second_order = true}) == "");
    CHECK(gradcheck(op, {in[0], in[1]}) == "");
    CHECK(gradcheck(op, {test::strided(in[0]), test::strided(in[1]), test::strided(in[2])}) == "");
  }
}

TEST_CASE("linear: an operand used twice gets both contributions") {
  CHECK(gradcheck([](const TensorList& in) { return linear(in[0], in[0]); },
                  {test::random({3, 4}, 1)}) == "");
  CHECK(gradcheck([](const TensorList& in) { return linear(linear(in[0], in[1]), in[1]); },
                  {test::random({2, 3}, 1), test::random({3, 3}, 2)}) == "");
}

TEST_CASE("linear: gradients in f32 and bf16 agree with f64") {
  const auto gradients = [](const TensorList& in, const Tensor& dy) {
    Tape tape;
    TensorList leaves;
    for (const Tensor& t : in) leaves.push_back(t.detach().set_requires_grad());
    return tape.gradients(op(leaves), leaves, dy);
  };
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    const TensorList low = inputs({3, 5, 6}, 4, t);
    TensorList high;
    for (const Tensor& x : low) high.push_back(x.to(DType::f64));
    const Tensor dy = test::random({3, 5, 4}, 9, t);
    const TensorList got = gradients(low, dy), want = gradients(high, dy.to(DType::f64));
    for (int i = 0; i < 3; ++i) {
      CAPTURE(i);
      CHECK(got[i].dtype() == t);
      CHECK(test::mismatch(got[i], want[i], 2 * test::tolerance(t)) == "");
    }
  }
}

TEST_CASE("linear: only the gradients that are needed are computed") {
  Tensor x = test::random({2, 3}, 1), w = test::random({4, 3}, 2), b = test::random({4}, 3);
  b.set_requires_grad();
  Tape tape;
  linear(x, w, b).backward(Tensor::ones({2, 4}, DType::f64));
  CHECK_FALSE(x.grad().defined());
  CHECK_FALSE(w.grad().defined());
  CHECK(test::mismatch(b.grad(), Tensor::full({4}, 2, DType::f64), 0) == "");
}

TEST_CASE("linear: a weight changed before backward is an error") {
  Tensor x = test::random({2, 3}, 1), w = test::random({4, 3}, 2);
  x.set_requires_grad();
  Tape tape;
  const Tensor y = linear(x, w);
  const std::uint32_t saved_at = w.version();
  w.fill_(0);
  CHECK(test::error_of([&] {
          y.backward(Tensor::ones({2, 4}, DType::f64));
        }) == message("linear: saved weight was changed in place (version {}, saved at {})",
                      saved_at + 1, saved_at));
}

TEST_CASE("linear: meta operands give shape and dtype") {
  const Tensor y =
      linear(Tensor::empty({2, 3, 4}, DType::bf16, kMeta),
             Tensor::empty({5, 4}, DType::bf16, kMeta), Tensor::empty({5}, DType::bf16, kMeta));
  CHECK(y.is_meta());
  CHECK(y.shape() == Shape{2, 3, 5});
  CHECK(y.dtype() == DType::bf16);
}

TEST_CASE("linear: errors name the rule and both shapes") {
  const auto text = [](const Tensor& x, const Tensor& w, const Tensor& b) {
    return test::error_of([&] { linear(x, w, b); });
  };
  const Tensor x = Tensor::zeros({2, 3}), w = Tensor::zeros({4, 3}), b = Tensor::zeros({4});
  CHECK(text(Tensor::zeros({}), w, b) == "linear: x must have at least 1 axis, got shape []");
  CHECK(text(x, Tensor::zeros({3, 4}), b) ==
        "linear: weight must have shape [N, 3] (last axis of x [2, 3]), got [3, 4]");
  CHECK(text(x, w, Tensor::zeros({3})) ==
        "linear: bias must have shape [4] (rows of weight [4, 3]), got [3]");
  CHECK(text(Tensor::zeros({2, 3}, DType::i64), w, b) ==
        "linear: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(text(x, Tensor::zeros({4, 3}, DType::f64), b) ==
        "linear: weight must have the dtype of x, f32, got f64");
  CHECK(text(x, w, Tensor::zeros({4}, DType::bf16)) ==
        "linear: bias must have the dtype of x, f32, got bf16");
  CHECK(text(x, Tensor::empty({4, 3}, DType::f32, kMeta), b) ==
        "linear: weight must be on the device of x, cpu, got meta");
  CHECK(text(x, w, Tensor::empty({4}, DType::f32, kMeta)) ==
        "linear: bias must be on the device of x, cpu, got meta");
}

}  // namespace weft::linear_test
