// Products of bf16 operands: within the error of f32 sums, computed by the processor's bf16
// instructions or widened, in every layout.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/core/cpu/product.h"
#include "weft/core/gemm.h"
#include "weft/core/kernels/grouped_linear.h"
#include "weft/core/parallel.h"
#include "weft/tests/simd_tables.h"
#include "weft/tests/support.h"

namespace weft::bf16_product_test {
namespace {

// Every way to compute bf16 products that this build and processor have; the last is the default.
template <class F>
void each_engine(const F& f) {
  const test::RestoreKernels restore;
  const test::RestoreThreads threads;
  for (const char* const engine : {"weft", "onednn", ""}) {
    CAPTURE(engine);
    if (test::error_of([&] { cpu::set_gemm_engine(engine); }) == "no error") f();
  }
}

// Values of a bf16 matrix, stored transposed if `trans`, with 3 unused columns.
struct Matrix {
  Tensor stored, values;
  Matrix(std::int64_t rows, std::int64_t cols, bool trans, std::uint64_t seed) {
    const Tensor wide =
        test::random({trans ? cols : rows, (trans ? rows : cols) + 3}, seed).to(DType::bf16);
    const Tensor part = wide.narrow(1, 0, trans ? rows : cols);
    stored = trans ? part.t() : part;
    values = stored.to(DType::f64).contiguous();
  }
};

// The largest error as a multiple of what f32 sums of k terms and one rounding of the result allow.
double error_ratio(const Tensor& got, const Tensor& want, const Tensor& magnitude, double k) {
  const Tensor g = got.to(DType::f64).contiguous();
  const double sums = (k + 2) * 0x1p-24, rounding = got.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-24;
  double worst = 0;
  for (std::int64_t i = 0; i < g.numel(); ++i) {
    const double bound =
        sums * magnitude.data<double>()[i] + rounding * std::abs(want.data<double>()[i]);
    const double off = std::abs(g.data<double>()[i] - want.data<double>()[i]);
    worst = std::max(worst, std::isnan(off) ? 1e9 : off / bound);
  }
  return worst;
}

Tensor scratch_of(const Tensor& dy, const Tensor& x) {
  const std::int64_t n = grouped_scratch(dy, x, GroupedProduct::weight_grad);
  return n > 0 ? Tensor::empty({n}) : Tensor();
}

void check_product(std::int64_t m, std::int64_t n, std::int64_t k, int form) {
  const bool trans_a = form & 1, trans_b = form & 2, accumulate = form & 4, f32 = form & 8;
  const Matrix a(m, k, trans_a, 1), b(k, n, trans_b, 2), c(m, n, false, 3);
  const Tensor want = Tensor::empty({m, n}, DType::f64), magnitude = empty_like(want);
  if (accumulate) {
    want.copy_(c.values);
    magnitude.copy_(c.values.abs());
  }
  gemm(a.values, b.values, want, accumulate);
  gemm(a.values.abs(), b.values.abs(), magnitude, accumulate);
  // Copied for each engine; the columns beyond the result stay as they are.
  const DType type = f32 ? DType::f32 : DType::bf16;
  each_engine([&] {
    const Tensor wide = Tensor::full({m, n + 3}, 77, type), out = wide.narrow(1, 0, n);
    out.copy_(c.stored.to(type));
    gemm(a.stored, b.stored, out, accumulate);
    CHECK(error_ratio(out, want, magnitude, static_cast<double>(k)) < 1);
    for (std::int64_t i = 0; i < m; ++i)
      REQUIRE(wide.select(0, i).narrow(0, n, 3).to(DType::f64).sum().item() == 3 * 77);
  });
}

}  // namespace

TEST_CASE("bf16 product: every layout and size is within the error of f32 sums") {
  struct Size {
    std::int64_t m, n, k;
  };
  for (const auto& [m, n, k] : {Size{1, 1, 1}, Size{3, 5, 2}, Size{1, 130, 96}, Size{31, 33, 34},
                                Size{70, 41, 129}, Size{2, 300, 500}, Size{1, 300, 500},
                                Size{300, 1, 500}, Size{300, 500, 1}, Size{260, 530, 65}})
    for (int form = 0; form < 16; ++form) {
      CAPTURE(m);
      CAPTURE(n);
      CAPTURE(k);
      CAPTURE(form);
      check_product(m, n, k, form);
    }
}

TEST_CASE("bf16 product: a batch, and a matrix that repeats along it") {
  const Tensor a = test::random({5, 40, 64}, 1).to(DType::bf16);
  const Tensor b = test::random({1, 64, 70}, 2).to(DType::bf16).expand({5, 64, 70});
  const Tensor wide_a = a.to(DType::f64), wide_b = b.to(DType::f64).contiguous();
  const Tensor want = Tensor::empty({5, 40, 70}, DType::f64), magnitude = empty_like(want);
  gemm(wide_a, wide_b, want);
  gemm(wide_a.abs(), wide_b.abs(), magnitude);
  each_engine([&] {
    const Tensor out = Tensor::empty({5, 40, 70}, DType::bf16);
    gemm(a, b, out);
    CHECK(error_ratio(out, want, magnitude, 64) < 1);
  });
}

// A group's rows are cut into pieces, of which some are small enough for plain loops.
TEST_CASE("bf16 product: a group's bits do not depend on the number of threads") {
  each_engine([] {
    set_deterministic(true);
    const Tensor dy = test::random({40, 64}, 1).to(DType::bf16);
    const Tensor x = test::random({40, 32}, 2).to(DType::bf16);
    const Tensor rows = Tensor::full({1}, 40, DType::i64);
    Tensor first;
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      const Tensor out = Tensor::empty({1, 64, 32}), scratch = scratch_of(dy, x);
      cpu::grouped_gemm(dy, x, GroupedProduct::weight_grad, rows, false, scratch, out);
      if (first.defined()) CHECK(test::different_bits(out, first) == "");
      first = out;
    }
  });
}

TEST_CASE("bf16 product: with fixed tiles the bits do not depend on the number of threads") {
  each_engine([] {
    const test::RestoreThreads restore;
    set_deterministic(true);
    const Tensor a = test::random({300, 200}, 1).to(DType::bf16);
    const Tensor b = test::random({200, 600}, 2).to(DType::bf16);
    Tensor first;
    for (const int threads : {1, 2, 3}) {
      set_num_threads(threads);
      const Tensor out = Tensor::empty({300, 600}, DType::bf16);
      gemm(a, b, out);
      if (first.defined()) CHECK(test::different_bits(out, first) == "");
      first = out;
    }
  });
}

TEST_CASE("bf16 product: infinities and NaN reach their own rows and columns only") {
  each_engine([] {
    for (const float bad : {std::numeric_limits<float>::infinity(), NAN}) {
      const Tensor a = test::random({40, 64}, 1).to(DType::bf16);
      const Tensor b = test::random({64, 50}, 2).to(DType::bf16);
      a.data<bf16>()[7 * 64 + 3] = bf16(bad);
      const Tensor out = Tensor::empty({40, 50}, DType::bf16);
      gemm(a, b, out);
      for (std::int64_t i = 0; i < 40; ++i)
        for (std::int64_t j = 0; j < 50; ++j)
          REQUIRE(std::isfinite(static_cast<float>(out.data<bf16>()[i * 50 + j])) == (i != 7));
    }
  });
}

}  // namespace weft::bf16_product_test
