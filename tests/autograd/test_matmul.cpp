#include <doctest/doctest.h>

#include <filesystem>
#include <thread>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/matmul.h"
#include "weft/core/gemm.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::matmul_test {

namespace {

using test::values;

// (M, K) x (K, N) by definition, in f64.
Tensor by_definition(const Tensor& a, const Tensor& b) {
  const std::int64_t m = a.dim(0), k = a.dim(1), n = b.dim(1);
  const std::vector<double> x = values(a), y = values(b);
  const Tensor out = Tensor::zeros({m, n}, DType::f64);
  double* z = out.data<double>();
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t p = 0; p < k; ++p)
        z[i * n + j] +=
            x[static_cast<std::size_t>(i * k + p)] * y[static_cast<std::size_t>(p * n + j)];
  return out;
}

Tensor op(const TensorList& in) { return matmul(in[0], in[1]); }

// One number, a row, a column, odd sizes, few long rows, larger than every block, no rows, no
// columns, no depth.
const std::int64_t kSizes[][3] = {
    {1, 1, 1},   {1, 9, 5},     {7, 1, 3},     {3, 5, 7}, {33, 47, 29}, {1, 20, 70}, {2, 128, 128},
    {5, 9, 100}, {64, 64, 300}, {70, 257, 65}, {0, 3, 2}, {3, 0, 2},    {3, 2, 0}};

}  // namespace

TEST_CASE("matmul: agrees with the definition in every dtype and layout") {
  for (const auto& [m, n, k] : kSizes)
    for (DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
      CAPTURE(message("{} x {} x {}, {}", m, n, k, t));
      const Tensor a = test::random({m, k}, 1, t), b = test::random({k, n}, 2, t);
      const Tensor want = by_definition(a, b);
      const double tol = test::tolerance(t) * std::max<double>(1, std::sqrt(double(k)));
      CHECK(test::mismatch(matmul(a, b), want, tol) == "");
      const Tensor a_t = a.t().contiguous().t(), b_t = b.t().contiguous().t();
      CHECK(test::mismatch(matmul(a_t, b), want, tol) == "");
      CHECK(test::mismatch(matmul(a, b_t), want, tol) == "");
      CHECK(test::mismatch(matmul(a_t, b_t), want, tol) == "");
      CHECK(test::mismatch(matmul(test::strided(a), test::strided(b)), want, tol) == "");
      CHECK(matmul(a, b).dtype() == t);
    }
}

TEST_CASE("matmul: a bf16 product larger than one widened block") {
  const Tensor a = test::random({3, 4100}, 1, DType::bf16),
               b = test::random({4100, 5}, 2, DType::bf16);
  const Tensor want = by_definition(a, b);
  CHECK(test::mismatch(matmul(a, b), want, 2e-2) == "");
  CHECK(test::mismatch(matmul(b.t(), a.t()), want.t(), 2e-2) == "");
  // Twice into an f32 out: the sum is never rounded to bf16.
  const Tensor sum = Tensor::zeros({3, 5});
  gemm(a, b, sum, true);
  gemm(a, b, sum, true);
  CHECK(test::mismatch(sum, want * 2.0, 1e-4) == "");
}

TEST_CASE("matmul: a block of a larger matrix is multiplied in place") {
  const Tensor whole = test::random({40, 50}, 3, DType::f32);
  const Tensor a = whole.slice(0, 3, 36).slice(1, 5, 45), b = whole.slice(0, 0, 40).slice(1, 1, 48);
  CHECK(test::mismatch(matmul(a, b), by_definition(a, b), 1e-4) == "");
  CHECK(test::mismatch(matmul(b.t(), a.t()), by_definition(b.t(), a.t()), 1e-4) == "");
}

TEST_CASE("matmul: leading axes broadcast and 1-D operands lose their axis") {
  struct Case {
    Shape a, b, y;
  };
  const Case cases[] = {{{2, 3, 4}, {4, 5}, {2, 3, 5}},
                        {{3, 4}, {2, 4, 5}, {2, 3, 5}},
                        {{2, 1, 3, 4}, {7, 4, 5}, {2, 7, 3, 5}},
                        {{2, 7, 3, 4}, {2, 1, 4, 5}, {2, 7, 3, 5}},
                        {{6, 1, 4}, {4, 5}, {6, 1, 5}},
                        {{0, 3, 4}, {4, 5}, {0, 3, 5}},
                        {{2, 3, 0}, {0, 5}, {2, 3, 5}},
                        {{4}, {4, 5}, {5}},
                        {{3, 4}, {4}, {3}},
                        {{4}, {4}, {}},
                        {{4}, {2, 4, 5}, {2, 5}},
                        {{2, 3, 4}, {4}, {2, 3}}};
  for (const Case& c : cases) {
    CAPTURE(message("{} x {}", c.a, c.b));
    const Tensor a = test::random(c.a, 1), b = test::random(c.b, 2);
    const Tensor y = matmul(a, b);
    REQUIRE(y.shape() == c.y);
    // The same by expanding both operands and multiplying one matrix at a time.
    const Tensor a2 = a.ndim() == 1 ? a.unsqueeze(0) : a, b2 = b.ndim() == 1 ? b.unsqueeze(1) : b;
    Shape lead = y.shape();
    if (a.ndim() > 1) lead.pop_back();
    if (b.ndim() > 1) lead.pop_back();
    Shape ea = lead, eb = lead;
    ea.push_back(a2.dim(-2)), ea.push_back(a2.dim(-1));
    eb.push_back(b2.dim(-2)), eb.push_back(b2.dim(-1));
    const std::int64_t n = lead.numel();
    const Tensor fa = a2.expand(ea).reshape({n, a2.dim(-2), a2.dim(-1)});
    const Tensor fb = b2.expand(eb).reshape({n, b2.dim(-2), b2.dim(-1)});
    const Tensor fy = y.reshape({n, a2.dim(-2), b2.dim(-1)});
    for (std::int64_t i = 0; i < n; ++i)
      CHECK(test::mismatch(fy.select(0, i), by_definition(fa.select(0, i), fb.select(0, i)),
                           1e-12) == "");
  }
}

TEST_CASE("matmul: a batch of matrices above the in-tree kernel's limit") {
  const Tensor a = test::random({5, 40, 33}, 1, DType::f32),
               b = test::random({5, 33, 41}, 2, DType::f32);
  const Tensor y = matmul(a, b);
  const Tensor yt = matmul(b.transpose(1, 2), a.transpose(1, 2));
  for (std::int64_t i = 0; i < 5; ++i) {
    const Tensor want = by_definition(a.select(0, i), b.select(0, i));
    CHECK(test::mismatch(y.select(0, i), want, 1e-4) == "");
    CHECK(test::mismatch(yt.select(0, i), want.t(), 1e-4) == "");
  }
}

TEST_CASE("matmul: one row repeated by expand times one matrix") {
  const Tensor row = test::random({1, 1, 100}, 1, DType::f32);
  const Tensor w = test::random({100, 400}, 2, DType::f32);  // above the library threshold
  const Tensor y = matmul(row.expand({3, 1, 100}), w);
  const Tensor want = by_definition(row.select(0, 0), w);
  for (std::int64_t i = 0; i < 3; ++i) CHECK(test::mismatch(y.select(0, i), want, 1e-4) == "");
}

TEST_CASE("matmul: gradients match finite differences twice") {
  const GradcheckOptions twice{.second_order = true};
  const Shape shapes[][2] = {
      {{3, 5}, {5, 2}}, {{2, 3, 4}, {4, 5}}, {{3, 4}, {2, 4, 2}}, {{2, 1, 3, 2}, {3, 2, 2}},
      {{4}, {4, 3}},    {{3, 4}, {4}},       {{4}, {4}},          {{0, 3}, {3, 2}},
      {{2, 0}, {0, 3}}, {{0, 2, 3}, {3, 2}}};
  for (const auto& [a, b] : shapes) {
    CAPTURE(message("{} x {}", a, b));
    CHECK(gradcheck(op, {test::random(a, 1), test::random(b, 2)}, twice) == "");
  }
  CHECK(gradcheck(op, {test::strided(test::random({2, 3, 4}, 1)), test::random({5, 4}, 2).t()}) ==
        "");
}

TEST_CASE("matmul: an operand used twice gets both contributions") {
  CHECK(gradcheck([](const TensorList& in) { return matmul(in[0], in[0]); },
                  {test::random({3, 3}, 5)}) == "");
  CHECK(gradcheck([](const TensorList& in) { return matmul(in[0].t(), in[0]); },
                  {test::random({4, 3}, 5)}, {.second_order = true}) == "");
}

TEST_CASE("matmul: gradients have the shape and dtype of their operands") {
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    Tensor a = test::random({2, 3, 4}, 1, t), b = test::random({4, 5}, 2, t);
    const Tensor dy = test::random({2, 3, 5}, 3, t);
    a.set_requires_grad();
    b.set_requires_grad();
    Tape tape;
    matmul(a, b).backward(dy);
    CHECK(a.grad().shape() == a.shape());
    CHECK(b.grad().shape() == b.shape());
    CHECK(a.grad().dtype() == t);
    CHECK(b.grad().dtype() == t);
    const Tensor db = by_definition(a.detach().reshape({6, 4}).t(), dy.reshape({6, 5}));
    CHECK(test::mismatch(b.grad(), db, 2 * test::tolerance(t)) == "");
  }
}

TEST_CASE("matmul: meta operands give shape and dtype") {
  const Tensor y = matmul(Tensor::empty({2, 3, 4}, DType::bf16, kMeta),
                          Tensor::empty({4, 5}, DType::bf16, kMeta));
  CHECK(y.is_meta());
  CHECK(y.shape() == Shape{2, 3, 5});
  CHECK(y.dtype() == DType::bf16);
}

TEST_CASE("matmul: deterministic results do not depend on the number of threads") {
  const test::RestoreThreads restore;
  set_deterministic(true);
  for (DType t : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const bool wide = t == DType::f32;
    const Tensor a = test::random({wide ? 300 : 70, 130}, 1, t);
    const Tensor b = test::random({130, wide ? 700 : 90}, 2, t);
    const Tensor batch = test::random({3, 50, 130}, 3, t);
    set_num_threads(1);
    const Tensor y = matmul(a, b), yb = matmul(batch, b.t().contiguous().t()),
                 yt = matmul(b.t(), a.t());
    CHECK(test::mismatch(y, by_definition(a, b), 20 * test::tolerance(t)) == "");
    for (int threads : {2, 4}) {
      set_num_threads(threads);
      CHECK(test::different_bits(matmul(a, b), y) == "");
      CHECK(test::different_bits(matmul(batch, b.t().contiguous().t()), yb) == "");
      CHECK(test::different_bits(matmul(b.t(), a.t()), yt) == "");
    }
  }
}

TEST_CASE("matmul: the gradient of a small weight adds the halves of many rows, in f32") {
  // On any number of threads the bits are those of two products and their sum.
  const test::RestoreThreads restore;
  set_deterministic(true);
  struct Case {
    std::int64_t k, m, n;
    bool halves;
  };
  for (const Case& c :
       {Case{1025, 40, 33, true}, Case{1024, 130, 64, true},
        // Few rows, a large weight, a small product: one sum.
        Case{1023, 40, 33, false}, Case{1024, 300, 300, false}, Case{1025, 4, 5, false}}) {
    const std::int64_t k = c.k, m = c.m, n = c.n, half = (k + 1) / 2;
    // Columns of wider matrices.
    const Tensor dy = test::random({k, m + 5}, 1, DType::f32).slice(1, 2, m + 2);
    const Tensor x = test::random({k, n + 3}, 2, DType::f32).slice(1, 1, n + 1);
    const Tensor before = test::random({m, n + 7}, 3, DType::f32);
    const Tensor dy0 = dy.narrow(0, 0, half).t(), dy1 = dy.narrow(0, half, k - half).t();
    const Tensor x0 = x.narrow(0, 0, half), x1 = x.narrow(0, half, k - half);
    const Tensor defined = by_definition(dy.t(), x);
    for (const int threads : {1, 2, 3, 4}) {
      CAPTURE(message("{} rows, {} x {}, {} threads", k, m, n, threads));
      set_num_threads(threads);
      const Tensor got = matmul(dy.t(), x);
      CHECK(test::mismatch(got, defined, 1e-3) == "");
      const bool same = test::different_bits(got, matmul(dy0, x0) + matmul(dy1, x1)).empty();
      CHECK(same == c.halves);
      if (!c.halves) continue;
      // Added to a block of a wider matrix.
      const Tensor sums = before.clone(), want = before.clone();
      gemm(dy.t(), x, sums.slice(1, 3, 3 + n), true);
      gemm(dy0, x0, want.slice(1, 3, 3 + n), true);
      want.slice(1, 3, 3 + n).add_(matmul(dy1, x1));
      CHECK(test::different_bits(sums, want) == "");
    }
  }
}

TEST_CASE("matmul: set_num_threads also limits products on other threads") {
  const test::RestoreThreads restore;
  set_num_threads(1);
  const auto threads_of_process = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  const Tensor a = test::random({512, 512}, 1, DType::f32);
  std::ptrdiff_t started = -1;
  std::thread([&] {
    const std::ptrdiff_t before = threads_of_process();
    matmul(a, a);
    started = threads_of_process() - before;
  }).join();
  CHECK(started == 0);
}

TEST_CASE("matmul: errors name the rule and both operands") {
  const auto text = [](const Tensor& a, const Tensor& b) {
    return test::error_of([&] { matmul(a, b); });
  };
  const Tensor x = Tensor::zeros({2, 3});
  CHECK(text(Tensor::zeros({}), x) ==
        "matmul: operands must have at least 1 axis, got shapes [] and [2, 3]");
  CHECK(text(x, Tensor::zeros({2, 3})) ==
        "matmul: inner dimensions must be equal, got shapes [2, 3] and [2, 3]");
  CHECK(text(x, Tensor::zeros({2})) ==
        "matmul: inner dimensions must be equal, got shapes [2, 3] and [2]");
  CHECK(text(x, Tensor::zeros({3, 2}, DType::f64)) ==
        "matmul: operands must have one dtype, got f32 and f64");
  CHECK(text(Tensor::zeros({2, 3}, DType::i32), x) ==
        "matmul: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(text(x, Tensor::empty({3, 2}, DType::f32, kMeta)) ==
        "matmul: operands must be on one device, got cpu and meta");
  CHECK(text(Tensor::zeros({2, 3, 4}), Tensor::zeros({3, 4, 5})) ==
        "matmul: leading axes: shapes must broadcast, got [2] and [3]");
}

TEST_CASE("matmul: dot and outer of vectors") {
  const Tensor a = test::random({5}, 1), b = test::random({5}, 2), c = test::random({3}, 3);
  CHECK(test::mismatch(dot(a, b), (a * b).sum(), 1e-14) == "");
  CHECK(test::mismatch(outer(a, c), matmul(a.view({5, 1}), c.view({1, 3})), 0) == "");
  CHECK(gradcheck([](const TensorList& in) { return dot(in[0], in[1]) * outer(in[1], in[0]); },
                  {a, test::strided(b)}) == "");
  CHECK(test::error_of([&] {
          dot(a, c.view({1, 3}));
        }) == "dot: both operands must have 1 axis, got [5] and [1, 3]");
  CHECK(test::error_of([&] { dot(a, c); }) ==
        "dot: both operands must have one length, got 5 and 3");
  CHECK(test::error_of([&] { dot(a, b.to(DType::f32)); }) ==
        "dot: operands must have one dtype, got f64 and f32");
  CHECK(test::error_of([&] { outer(Tensor(), c); }) ==
        "outer: a must be a tensor, got a null handle");
}

}  // namespace weft::matmul_test
