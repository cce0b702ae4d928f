#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "weft/autograd/cross_entropy.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear_cross_entropy.h"
#include "weft/core/profile.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::cross_entropy_test {
namespace {

using test::Agreement;
using test::disagreement;
using test::error_of;
using test::kGpu;
using test::Op;
using test::random;

constexpr Reduction kReductions[] = {Reduction::none, Reduction::mean, Reduction::sum};

// Multiplied by the number of classes, because a wide row's gradient would be below any tolerance.
Op loss_of(const CrossEntropyOptions& options) {
  return [options](const TensorList& in) {
    return TensorList{cross_entropy(in[0], in[1], options) * static_cast<double>(in[0].dim(-1))};
  };
}
Op linear_loss_of(const CrossEntropyOptions& options) {
  return [options](const TensorList& in) {
    return TensorList{linear_cross_entropy(in[0], in[1], in[2], options) *
                      static_cast<double>(in[1].dim(0))};
  };
}

// Classes spread over the row, including its ends; every fifth row is ignored.
Tensor targets_for(const Shape& rows, std::int64_t classes, DType dtype = DType::i64) {
  std::vector<std::int64_t> t;
  for (std::int64_t r = 0; r < rows.numel(); ++r)
    t.push_back(r % 5 == 3 ? -100 : r == 0 ? classes - 1 : r == 1 ? 0 : r * 977 % classes);
  return Tensor::from(std::span<const std::int64_t>(t), rows).to(dtype);
}

Tensor ids(const std::vector<std::int64_t>& values) {
  return Tensor::from(std::span<const std::int64_t>(values),
                      {static_cast<std::int64_t>(values.size())});
}

// A forward and a backward pass.
struct Result {
  Tensor loss, grad;
};
Result run(const Tensor& x, const Tensor& t, const CrossEntropyOptions& options) {
  Tensor leaf = x.detach();
  leaf.set_requires_grad();
  Tape tape;
  const Tensor loss = cross_entropy(leaf, t, options);
  const Tensor dy = Tensor::full(loss.shape(), 1, loss.dtype(), loss.device());
  return {loss, tape.gradients(loss, {leaf}, dy)[0]};
}

}  // namespace

TEST_CASE(
    "linear_cross_entropy: 16-bit gradients of whole packs are scaled by the upstream gradient") {
  const Tensor x = random({8, 16}, 2), w = random({24, 16}, 3);
  CHECK(disagreement(linear_loss_of({.reduction = Reduction::sum}), {x, w, targets_for({8}, 24)},
                     {.tolerance = 4}) == "");
}

TEST_CASE("cross_entropy: short rows with every reduction, smoothing and dtype of targets") {
  for (const Shape& rows : {Shape{}, Shape{1}, Shape{6}, Shape{2, 9}, Shape{0}})
    for (const std::int64_t classes : {1, 5, 64, 387}) {
      Shape shape = rows;
      shape.push_back(classes);
      CAPTURE(to_string(shape));
      const Tensor x = random(shape, 2) * 3.0;
      for (const Reduction reduction : kReductions)
        for (const double smoothing : {0.0, 0.1}) {
          const CrossEntropyOptions o{.reduction = reduction, .label_smoothing = smoothing};
          CHECK(disagreement(loss_of(o), {x, targets_for(rows, classes)},
                             {.tolerance = 2,
                              .all_orders = classes < 64,
                              .terms = classes == 1 ? 1.0 : 0.0}) == "");
        }
      CHECK(disagreement(loss_of({}), {test::strided(x), targets_for(rows, classes, DType::i32)},
                         {.tolerance = 2, .all_orders = classes < 64}) == "");
    }
}

TEST_CASE("cross_entropy: one block per row for rows as wide as a vocabulary") {
  for (const std::int64_t classes : {1025, 2048, 8195, 50257})
    for (const double smoothing : {0.0, 0.1}) {
      CAPTURE(classes);
      const std::int64_t rows = classes < 10000 ? 3 : 2;
      CHECK(disagreement(loss_of({.label_smoothing = smoothing}),
                         {random({rows, classes}, 3) * 3.0, targets_for({rows}, classes)},
                         {.tolerance = 2, .all_orders = classes < 10000}) == "");
    }
}

TEST_CASE("cross_entropy: fused with the product for rows in shared memory and rows read twice") {
  // Small logits, because the fused op rounds them to bf16, which the f64 reference does not do. A
  // row of 12,608 f64 and one of 25,216 f32 take all shared memory that a block may have.
  for (const std::int64_t classes : {7, 1100, 12608, 12700, 25216, 25601})
    for (const Reduction reduction : kReductions)
      for (const double smoothing : {0.0, 0.1}) {
        if (classes > 2000 && (reduction == Reduction::none || smoothing > 0)) continue;
        CAPTURE(classes);
        const CrossEntropyOptions o{.reduction = reduction, .label_smoothing = smoothing};
        CHECK(
            disagreement(linear_loss_of(o),
                         {random({5, 3}) * 0.3, random({classes, 3}, 2), targets_for({5}, classes)},
                         {.tolerance = 4, .all_orders = classes < 100}) == "");
      }
}

// GPT-2's head: cuBLASLt's fast kernels need extents of whole packs of 16 bytes.
TEST_CASE("cross_entropy: the large products of an odd number of classes have whole packs") {
  const Tensor x = random({16, 24}).to(DType::bf16).to(kGpu).set_requires_grad();
  const Tensor w = random({8203, 24}, 2).to(DType::bf16).to(kGpu).set_requires_grad();
  Profiler profiler(true);
  profiler.start("step");
  Tape tape;
  tape.backward(linear_cross_entropy(x, w, targets_for({16}, 8203).to(kGpu)));
  profiler.stop();
  int large = 0, small = 0;
  for (const Profiler::Entry& e : profiler.entries()) {
    if (e.kernel != "gemm") continue;
    CAPTURE(e.operands);
    CHECK(e.operands.find("8203") == std::string::npos);
    large += e.operands.find("8200") != std::string::npos;
    small += e.operands.find("8200") == std::string::npos;
  }
  CHECK(large == 3);
  CHECK(small == 3);
}

TEST_CASE("cross_entropy: a loss scale keeps small f16 gradients of a mean") {
  // A class that is no target has a probability of about 1e-4, and 1e-4 / 4096 is 0 in f16.
  const std::int64_t rows = 4096;
  const Tensor x = (random({rows, 1}) * 0.02 + 1).to(DType::f16);
  const Tensor w = random({12, 1}, 2) * 0.1 - 9.2, w16 = w.to(DType::f16);
  w16[0].fill_(0);
  const auto dw_of = [&](DType t, Device device, double scale) {
    const Tensor a = x.to(t).to(device), b = w16.to(t).to(device).detach().set_requires_grad();
    Tape tape;
    const Tensor loss = linear_cross_entropy(a, b, Tensor::zeros({rows}, DType::i64).to(device));
    const Tensor dy = Tensor::full({}, scale, loss.dtype(), device);
    return mul(tape.gradients(loss, {b}, dy)[0].to(kCpu).to(DType::f64), 1e4 / scale);
  };
  CHECK(test::mismatch(dw_of(DType::f16, test::kGpu, 4096), dw_of(DType::f64, kCpu, 1), 1e-2) ==
        "");
}

TEST_CASE("cross_entropy: -inf and NaN among the logits in one or two passes") {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const Tensor few = Tensor::of({-inf, 1, 2, -inf, -inf, -inf, 1, nan, 2, nan, -inf, -inf}, {4, 3});
  const Tensor wide = Tensor::full({4, 1500}, -inf);
  for (int i = 0; i < 3; ++i) wide.narrow(1, i * 700, 1).copy_(few.narrow(1, i, 1));
  for (const DType dtype : test::kFloating)
    for (const double smoothing : {0.0, 0.1})
      for (const Tensor& logits : {few, wide}) {
        CAPTURE(std::string(name(dtype)));
        const std::int64_t step = logits.dim(1) == 3 ? 1 : 700;
        const Tensor x = logits.to(dtype), t = ids({step, step, 0, 0});
        const CrossEntropyOptions o{.reduction = Reduction::none, .label_smoothing = smoothing};
        const Result want = run(x, t, o);
        test::for_each_order([&] {
          const Result got = run(x.to(kGpu), t.to(kGpu), o);
          CHECK(test::mismatch(got.loss.to(kCpu), want.loss, test::tolerance(dtype)) == "");
          CHECK(test::mismatch(got.grad.to(kCpu), want.grad, test::tolerance(dtype)) == "");
        });
      }
}

TEST_CASE("cross_entropy: hits of short rows, rows in shared memory and rows read twice") {
  // Small integers: products without rounding, and many equal logits.
  const auto whole = [](const Shape& shape, std::uint64_t seed) {
    return test::random_in(shape, 0, 6, seed).to(DType::i32).to(DType::f64) - 3.0;
  };
  for (const DType dtype : test::kFloating)
    for (const std::int64_t classes : {4, 1100, 12700, 25601}) {
      if (classes > 2000 && dtype == DType::f64) continue;
      const Tensor x = whole({9, 2}, 3).to(dtype), w = whole({classes, 2}, 4).to(dtype);
      const Tensor logits = x.matmul(w.t());
      const Tensor t = logits.argmax();  // the first of the largest: all hits, but
      t.narrow(0, 3, 1).fill_(-100);
      t.narrow(0, 5, 2).copy_((logits.narrow(0, 5, 2).to(DType::f32) * -1.0).argmax());
      const Tensor want = Tensor::of({1, 1, 1, 0, 1, 0, 0, 1, 1}, {9}, DType::boolean);
      CAPTURE(classes);
      const auto check = [&] {
        Tensor leaf = x.to(kGpu);
        leaf.set_requires_grad();
        const Tensor hits = Tensor::empty({9}, DType::boolean, kGpu);
        const CrossEntropyOptions o{.reduction = Reduction::sum, .hits = hits};
        linear_cross_entropy(x.to(kGpu), w.to(kGpu), t.to(kGpu), o);
        CHECK(test::mismatch(hits.to(kCpu), want, 0) == "");
        hits.fill_(0);
        Tape tape;
        linear_cross_entropy(leaf, w.to(kGpu), t.to(kGpu), o);
        CHECK(test::mismatch(hits.to(kCpu), want, 0) == "");
      };
      if (classes < 100)
        test::for_each_order(check);
      else
        check();
    }
}

TEST_CASE("cross_entropy: all rows ignored gives 0 for any logits") {
  const Tensor x = Tensor::full({2, 3}, std::nan(""), DType::f32, kGpu);
  const Result r = run(x, ids({-100, -100}).to(kGpu), {});
  CHECK(r.loss.item() == 0);
  CHECK(test::mismatch(r.grad.to(kCpu), Tensor::zeros({2, 3}), 0) == "");
}

TEST_CASE("count_valid: any number of rows") {
  for (const std::int64_t rows : {0, 3, 2500}) {
    const Tensor t = targets_for({rows}, 50);
    test::for_each_order(
        [&] { CHECK(count_valid(t.to(kGpu)).item_int() == count_valid(t).item_int()); });
  }
}

TEST_CASE("cross_entropy: the next wait reports a target out of range and nothing is written") {
  const std::int64_t huge = std::int64_t{1} << 40;
  const Tensor x = random({4, 5}, 1, DType::f32);
  const CrossEntropyOptions rows{.reduction = Reduction::none};
  for (const std::int64_t bad : {std::int64_t{5}, std::int64_t{-1}, huge, -huge}) {
    const Tensor gx = x.to(kGpu), t = ids({4, bad, 0, 77}).to(kGpu);
    const Tensor w = random({5, 5}, 2, DType::f32).to(kGpu);
    cuda::synchronize();
    test::for_each_order([&] {
      const Result r = run(gx, t, rows);
      CHECK(error_of([] { cuda::synchronize(); }) ==
            message("cross_entropy: target must be in [0, 5) or ignore_index -100, got {}", bad));
      CHECK(error_of([] { cuda::synchronize(); }) == "no error");
      const Result want = run(x, ids({4, -100, 0, -100}), rows);
      CHECK(test::mismatch(r.loss.to(kCpu), want.loss, 2e-5) == "");
      CHECK(test::mismatch(r.grad.to(kCpu), want.grad, 2e-5) == "");

      Tensor leaf = gx.detach();
      leaf.set_requires_grad();
      Tape tape;
      const Tensor loss = linear_cross_entropy(leaf, w, t, {.ignore_index = 77});
      CHECK(error_of([] { cuda::synchronize(); }) ==
            message("linear_cross_entropy: target must be in [0, 5) or ignore_index 77, got {}",
                    bad));
      CHECK(std::isfinite(loss.item()));
    });
  }
}

TEST_CASE("cross_entropy: the host never waits in forward and backward") {
  const Tensor x = random({6, 300}, 1, DType::f32).to(kGpu);
  const Tensor t = targets_for({6}, 300).to(kGpu);
  const Tensor w = random({40, 300}, 2, DType::f32).to(kGpu);
  const Tensor small = targets_for({6}, 40).to(kGpu);
  const auto step = [&] {
    for (const Reduction reduction : kReductions) {
      run(x, t, {.reduction = reduction, .label_smoothing = 0.1});
      Tensor leaf = x.detach();
      leaf.set_requires_grad();
      Tape tape;
      const Tensor loss = linear_cross_entropy(leaf, w, small, {.reduction = reduction});
      tape.gradients(loss, {leaf}, Tensor::full(loss.shape(), 1, DType::f32, kGpu));
    }
  };
  step();
  const std::int64_t before = cuda::host_syncs();
  step();
  CHECK(cuda::host_syncs() == before);
  cuda::synchronize();
}

}  // namespace weft::cross_entropy_test
