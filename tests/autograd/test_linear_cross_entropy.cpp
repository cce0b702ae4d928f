#include <doctest/doctest.h>

#include "weft/autograd/indexing.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/linear_cross_entropy.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/reduce.h"
#include "weft/core/allocator.h"
#include "weft/core/parallel.h"
#include "weft/tests/cross_entropy_oracle.h"

namespace weft::test::linear_cross_entropy_test {
namespace {

// 7 rows in chunks of 1, 2, 3 and 7 rows, with and without a short last chunk.
constexpr std::int64_t kChunks[] = {1, 2, 3, 7};
constexpr std::int64_t kRows = 7, kWidth = 5, kClasses = 6;

Tensor some_targets() { return ids({0, 5, -100, 2, 2, 1, -100}, {kRows}); }

Tensor cotangent(Reduction reduction, DType x) {
  const DType real = x == DType::f64 ? DType::f64 : DType::f32;
  return reduction == Reduction::none ? test::random({kRows}, 3).to(real)
                                      : Tensor::full({}, -0.37, real);
}

}  // namespace

TEST_CASE("linear_cross_entropy: gradcheck with several chunks") {
  for (const std::int64_t chunk : kChunks)
    for (const Reduction reduction : kReductions)
      for (const double smoothing : {0.0, 0.1}) {
        CAPTURE(chunk);
        CAPTURE(static_cast<int>(reduction));
        CAPTURE(smoothing);
        const auto f = [&](const TensorList& in) {
          return detail::linear_cross_entropy(
              in[0], in[1], in[2], {.reduction = reduction, .label_smoothing = smoothing}, chunk);
        };
        const Tensor x = test::random({kRows, kWidth}, 1), w = test::random({kClasses, kWidth}, 2);
        CHECK(gradcheck(f, {x, w, some_targets()}) == "");
      }
}

TEST_CASE("linear_cross_entropy: gradcheck of other layouts, zero rows and all rows ignored") {
  for (const Reduction reduction : kReductions) {
    const auto f = [&](const TensorList& in) {
      return linear_cross_entropy(in[0], in[1], in[2], {.reduction = reduction});
    };
    const Tensor w = test::random({kClasses, kWidth}, 2);
    CHECK(gradcheck(f, {strided(test::random({2, 3, kWidth}, 1)), strided(w),
                        ids({0, 5, 1, 2, -100, 4}, {3, 2}, DType::i32).transpose(0, 1)}) == "");
    CHECK(gradcheck(f, {test::random({kWidth}, 1), w, ids({3}, {})}) == "");
    CHECK(gradcheck(f, {Tensor::empty({0, kWidth}, DType::f64), w, ids({}, {0})}) == "");
    CHECK(gradcheck(f, {test::random({2, kWidth}, 1), w, ids({-100, -100}, {2})}) == "");
  }
}

TEST_CASE("linear_cross_entropy: gradcheck of an operand used twice and of a tied weight") {
  const Tensor square = test::random({4, 4}, 1), t = ids({3, 0, 1, 2}, {4});
  CHECK(gradcheck([](const TensorList& in) { return linear_cross_entropy(in[0], in[0], in[1]); },
                  {square, t}) == "");
  const auto two_losses = [](const TensorList& in) {
    return linear_cross_entropy(in[0], in[1], in[2]) +
           linear_cross_entropy(in[0], in[1], in[2], {.reduction = Reduction::sum});
  };
  CHECK(gradcheck(two_losses, {test::random({4, 3}, 1), test::random({5, 3}, 2), t}) == "");
  const auto tied = [](const TensorList& in) {
    return linear_cross_entropy(embedding(in[0], in[1]), in[0], in[2]);
  };
  CHECK(gradcheck(tied, {test::random({5, 3}, 1), ids({0, 2, 2, 4}, {4}), t}) == "");
}

TEST_CASE("linear_cross_entropy: equals linear and cross_entropy") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const std::int64_t chunk : kChunks)
      for (const Reduction reduction : kReductions)
        for (const double smoothing : {0.0, 0.1}) {
          CAPTURE(name(dtype));
          CAPTURE(chunk);
          CAPTURE(static_cast<int>(reduction));
          CAPTURE(smoothing);
          const CrossEntropyOptions o{.reduction = reduction, .label_smoothing = smoothing};
          const Tensor x = test::random({kRows, kWidth}, 1, dtype);
          const Tensor w = test::random({kClasses, kWidth}, 2, dtype);
          const Tensor t = some_targets(), dy = cotangent(reduction, dtype);
          const auto two_ops = [&](const Tensor& a, const Tensor& b) {
            return cross_entropy(linear(a, b), t, o);
          };
          const auto one_op = [&](const Tensor& a, const Tensor& b) {
            return detail::linear_cross_entropy(a, b, t, o, chunk);
          };
          const Outcome got = differentiate(x, w, dy, one_op);
          const Outcome want =
              differentiate(x.to(DType::f64), w.to(DType::f64), dy.to(DType::f64), two_ops);
          CHECK(different_bits(got.loss, two_ops(x, w)) == "");
          CHECK(different_bits(got.loss, one_op(x, w)) == "");  // without recording
          CHECK(got.dx.dtype() == dtype);
          CHECK(got.dw.dtype() == dtype);
          CHECK(mismatch(got.loss, want.loss, 2 * tolerance(dtype)) == "");
          CHECK(mismatch(got.dx, want.dx, 2 * tolerance(dtype)) == "");
          CHECK(mismatch(got.dw, want.dw, 2 * tolerance(dtype)) == "");
        }
}

TEST_CASE("linear_cross_entropy: a bf16 weight's gradient is summed over chunks in f32") {
  // Every row gives the same gradient. A bf16 sum, row by row, would stop growing.
  constexpr std::int64_t rows = 1024;
  const Tensor x = Tensor::ones({rows, 1}, DType::bf16), w = Tensor::zeros({2, 1}, DType::bf16);
  const Tensor t = Tensor::zeros({rows}, DType::i64);
  const Outcome got = differentiate(x, w, {}, [&](const Tensor& a, const Tensor& b) {
    return detail::linear_cross_entropy(a, b, t, {.reduction = Reduction::sum}, 1);
  });
  CHECK(far(got.dw, {-512, 512}, 0, 0) == "");
}

TEST_CASE("linear_cross_entropy: only the required gradients are computed") {
  const Tensor t = some_targets();
  for (const Reduction reduction : kReductions)
    for (const bool of_weight : {false, true}) {
      Tensor x = test::random({kRows, kWidth}, 1), w = test::random({kClasses, kWidth}, 2);
      const Tensor dy = cotangent(reduction, DType::f64);
      const Outcome both = differentiate(x, w, dy, [&](const Tensor& a, const Tensor& b) {
        return linear_cross_entropy(a, b, t, {.reduction = reduction});
      });
      (of_weight ? w : x).set_requires_grad();
      Tape tape;
      linear_cross_entropy(x, w, t, {.reduction = reduction}).backward(dy);
      CHECK_FALSE((of_weight ? x : w).grad().defined());
      CHECK(different_bits((of_weight ? w : x).grad(), of_weight ? both.dw : both.dx) == "");
    }
}

TEST_CASE("linear_cross_entropy: a second backward with another cotangent adds to grad()") {
  const Tensor t = some_targets();
  Tensor x = test::random({kRows, kWidth}, 1), w = test::random({kClasses, kWidth}, 2);
  x.set_requires_grad();
  w.set_requires_grad();
  const auto backward = [&](double dy) {
    Tape tape;
    detail::linear_cross_entropy(x, w, t, {}, 3).backward(Tensor::full({}, dy, DType::f64));
  };
  backward(1);
  const Tensor dx = x.grad().clone(), dw = w.grad().clone();
  backward(2);
  NoGradGuard off;
  CHECK(mismatch(x.grad(), dx * 3.0, 1e-15) == "");
  CHECK(mismatch(w.grad(), dw * 3.0, 1e-15) == "");
}

TEST_CASE("linear_cross_entropy: the inner tape's pass leaves the outer tape's gradient intact") {
  const Tensor t = some_targets();
  Tensor x = test::random({kRows, kWidth}, 1), w = test::random({kClasses, kWidth}, 2);
  x.set_requires_grad();
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    Tape outer;
    Tape inner;
    const Tensor loss = linear_cross_entropy(x, w, t, {.reduction = reduction});
    NoGradGuard off;
    const Tensor three = inner.gradients(loss, {x}, Tensor::full({}, 3, DType::f64))[0];
    const Tensor one = outer.gradients(loss, {x})[0];
    CHECK(mismatch(three, one * 3.0, 1e-15) == "");
    CHECK(values(norm(one))[0] > 0.1);
  }
}

TEST_CASE("linear_cross_entropy: a recomputed region gives the same bits") {
  const Tensor t = some_targets(), x = test::random({kRows, kWidth}, 1),
               w = test::random({kClasses, kWidth}, 2);
  for (const Reduction reduction : kReductions) {
    const auto plain = [&](const Tensor& a, const Tensor& b) {
      return detail::linear_cross_entropy(a, b, t, {.reduction = reduction}, 3);
    };
    const Tensor dy = cotangent(reduction, DType::f64);
    const Outcome want = differentiate(x, w, dy, plain);
    const Outcome got = differentiate(x, w, dy, [&](const Tensor& a, const Tensor& b) {
      return recompute([&](const TensorList& in) { return TensorList{plain(in[0], in[1])}; },
                       {a, b})[0];
    });
    CHECK(different_bits(got.loss, want.loss) == "");
    CHECK(different_bits(got.dx, want.dx) == "");
    CHECK(different_bits(got.dw, want.dw) == "");
  }
}

TEST_CASE("linear_cross_entropy: no gradient without a tape or in a region's first pass") {
  Tensor w = test::random({3000, 8}, 1), x = test::random({2, 8}, 2);
  w.set_requires_grad();
  const auto peak = [&](bool again) {
    const auto loss = [&](const Tensor& in) {
      return linear_cross_entropy(in, w, ids({0, 1}, {2}));
    };
    const std::int64_t before = memory_stats().live_bytes;
    reset_peak();
    again ? recompute(loss, x) : loss(x);
    return memory_stats().peak_bytes - before;
  };
  const std::int64_t gradient = 8 * w.numel();
  CHECK(peak(false) < gradient);
  const Tape tape;
  CHECK(peak(true) < gradient);
  CHECK(peak(false) > gradient);
}

TEST_CASE("linear_cross_entropy: -inf and NaN among the logits and all rows ignored") {
  // Row 0 has only -inf logits: loss +inf, gradient 0, and the other row keeps its own.
  const Tensor w = Tensor::of({1, 2}, {2, 1});
  const auto loss_of = [&](const Tensor& x) {
    return differentiate(x, w, Tensor::ones({2}), [&](const Tensor& a, const Tensor& b) {
      return detail::linear_cross_entropy(a, b, ids({0, 0}, {2}), {.reduction = Reduction::none},
                                          1);
    });
  };
  const Outcome masked = loss_of(Tensor::of({-kInf, 1}, {2, 1}));
  CHECK(values(masked.loss)[0] == kInf);
  CHECK(values(masked.dx)[0] == 0);
  CHECK(values(masked.dx)[1] > 0);
  CHECK(std::isnan(values(loss_of(Tensor::of({std::nan(""), 1}, {2, 1})).loss)[0]));
  const Outcome mean =
      differentiate(Tensor::of({-kInf, 1}, {2, 1}), w, {}, [&](const Tensor& a, const Tensor& b) {
        return linear_cross_entropy(a, b, ids({0, 0}, {2}), {});
      });
  CHECK(mean.loss.item() == kInf);
  CHECK(values(mean.dx)[0] == 0);
  const Outcome ignored = differentiate(
      test::random({2, 1}, 1, DType::f32), w, {}, [&](const Tensor& a, const Tensor& b) {
        return linear_cross_entropy(a, b, ids({-100, -100}, {2}), {});
      });
  CHECK(ignored.loss.item() == 0);
  CHECK(mismatch(ignored.dx, Tensor::zeros({2, 1}), 0) == "");
  CHECK(mismatch(ignored.dw, Tensor::zeros({2, 1}), 0) == "");
}

TEST_CASE("linear_cross_entropy: a hit needs the largest logit, ties included") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor logits =
      Tensor::of({1, 5, 2, 1, 5, 2, 5, 5, 2, 5, 5, 2, nan, 1, 2, 7, 8, 9, -kInf, -kInf, -kInf},
                 {7, 3}, DType::f64);
  const Tensor t = ids({1, 2, 0, 1, 1, -100, 0}, {7});
  const std::vector<double> want = {1, 0, 1, 1, 0, 0, 1};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const Reduction reduction : kReductions)
      for (const double smoothing : {0.0, 0.1}) {
        CAPTURE(name(dtype));
        CAPTURE(static_cast<int>(reduction));
        const Tensor hits = Tensor::empty({7}, DType::boolean);
        const CrossEntropyOptions o{
            .reduction = reduction, .label_smoothing = smoothing, .hits = hits};
        cross_entropy(logits.to(dtype), t, o);
        CHECK(values(hits) == want);
        // Products of finite values with the identity, recorded or not.
        const Tensor x = logits.narrow(0, 0, 4).to(dtype), w = Tensor::eye(3, dtype);
        const Tensor dy = cotangent(reduction, dtype);
        const Tensor few_dy = dy.ndim() ? dy.narrow(0, 0, 4) : dy;
        for (const std::int64_t chunk : kChunks) {
          CrossEntropyOptions few = o;
          few.hits = Tensor::empty({4}, DType::boolean);
          const auto f = [&](const Tensor& a, const Tensor& b) {
            return detail::linear_cross_entropy(a, b, t.narrow(0, 0, 4), few, chunk);
          };
          f(x, w);
          CHECK(values(few.hits) == std::vector<double>{1, 0, 1, 1});
          few.hits.fill_(0);
          differentiate(x, w, few_dy, f);
          CHECK(values(few.hits) == std::vector<double>{1, 0, 1, 1});
        }
      }
  const Tensor no_rows = Tensor::empty({0}, DType::boolean);
  cross_entropy(Tensor::empty({0, 3}), ids({}, {0}), {.hits = no_rows});
  const auto refused = [&](const Tensor& hits) {
    return error_of([&] { cross_entropy(logits, t, {.hits = hits}); });
  };
  CHECK(refused(Tensor::empty({7}, DType::u8)) ==
        "cross_entropy: hits must be a contiguous bool tensor of shape [7] on device cpu like the "
        "targets, got u8 [7] on cpu");
  CHECK(refused(Tensor::empty({14}, DType::boolean).slice(0, 0, 14, 2)) ==
        "cross_entropy: hits must be a contiguous bool tensor of shape [7] on device cpu like the "
        "targets, got bool [7] on cpu");
  CHECK(error_of([&] {
          linear_cross_entropy(logits, Tensor::eye(3, DType::f64), t,
                               {.hits = Tensor::empty({6}, DType::boolean)});
        }) ==
        "linear_cross_entropy: hits must be a contiguous bool tensor of shape [7] on device cpu "
        "like the targets, got bool [6] on cpu");
}

TEST_CASE("linear_cross_entropy: the number of threads changes no bit") {
  // Several threads share rows, and the products are below the threshold for the BLAS library.
  const Tensor x = test::random({33, 3}, 5, DType::f32), w = test::random({3000, 3}, 6, DType::f32);
  std::vector<std::int64_t> targets;
  for (int r = 0; r < 33; ++r) targets.push_back(r % 5 ? r * 17 : -100);
  const Tensor t = ids(targets, {33});
  const test::RestoreThreads restore;
  set_deterministic(true);
  const auto run_with = [&](int threads) {
    set_num_threads(threads);
    return differentiate(x, w, {}, [&](const Tensor& a, const Tensor& b) {
      return detail::linear_cross_entropy(a, b, t, {.label_smoothing = 0.1}, 10);
    });
  };
  const Outcome one = run_with(1);
  for (const int threads : {2, 4}) {
    const Outcome many = run_with(threads);
    CHECK(different_bits(many.loss, one.loss) == "");
    CHECK(different_bits(many.dx, one.dx) == "");
    CHECK(different_bits(many.dw, one.dw) == "");
  }
}

TEST_CASE("linear_cross_entropy: meta gives the shape, the dtype and the bytes of a real step") {
  const auto peak = [](Device device, Reduction reduction) {
    Tensor x = test::random({70, 8}, 1, DType::f32).to(device);
    Tensor w = test::random({300, 8}, 2, DType::f32).to(device);
    const Tensor t = Tensor::zeros({70}, DType::i32, device);
    x.set_requires_grad();
    w.set_requires_grad();
    const std::int64_t before = memory_stats(device).live_bytes;
    reset_peak(device);
    Tape tape;
    const Tensor loss = detail::linear_cross_entropy(x, w, t, {.reduction = reduction}, 16);
    CHECK(loss.is_meta() == device.is_meta());
    CHECK(loss.dtype() == DType::f32);
    CHECK(loss.shape() == (reduction == Reduction::none ? Shape{70} : Shape{}));
    loss.backward(Tensor::ones(loss.shape(), DType::f32, device));
    return memory_stats(device).peak_bytes - before;
  };
  for (const Reduction reduction : kReductions) {
    const std::int64_t bytes = peak(kCpu, reduction);
    CHECK(bytes == peak(kMeta, reduction));
    // The logits of all 70 rows never exist at the same time.
    CHECK(bytes < 70 * 300 * 4);
  }
}

TEST_CASE("linear_cross_entropy: chunks have equal size and at least 512 rows") {
  using enum detail::LogitSpace;
  const auto rows = detail::loss_chunk_rows;
  CHECK(rows(8192, 256, DType::f32, cpu_memory) == 8192);
  CHECK(rows(1024, 50257, DType::f32, cpu_memory) == 512);
  CHECK(rows(1025, 50257, DType::f32, cpu_memory) == 342);
  CHECK(rows(4096, 50257, DType::bf16, cpu_memory) == 586);
  CHECK(rows(0, 50257, DType::f32, cpu_memory) == 0);
  CHECK(rows(2048, 256, DType::f32, cpu_cache) == 512);
  CHECK(rows(1100, 128, DType::f32, cpu_cache) == 550);
  CHECK(rows(2048, 257, DType::f32, cpu_cache) == 2048);
  CHECK(rows(4096, 50257, DType::f32, cpu_cache) == rows(4096, 50257, DType::f32, cpu_memory));
  CHECK(rows(65536, 50304, DType::bf16, gpu_memory) == 9363);
}

TEST_CASE("linear_cross_entropy: errors name the rule") {
  const Tensor x = Tensor::zeros({2, 4}), w = Tensor::zeros({5, 4}), t = ids({0, 1}, {2});
  const auto error = [](const Tensor& a, const Tensor& b, const Tensor& c,
                        const CrossEntropyOptions& o = {}) {
    return error_of([&] { linear_cross_entropy(a, b, c, o); });
  };
  CHECK(error({}, w, t) == "linear_cross_entropy: x must be a tensor, got a null handle");
  CHECK(error(x, {}, t) == "linear_cross_entropy: weight must be a tensor, got a null handle");
  CHECK(error(x, w, {}) == "linear_cross_entropy: targets must be a tensor, got a null handle");
  CHECK(error(Tensor::zeros({2, 4}, DType::i64), w, t) ==
        "linear_cross_entropy: x must have dtype f32, f64, bf16 or f16, got i64");
  CHECK(error(x, w, Tensor::zeros({2})) ==
        "linear_cross_entropy: targets must have dtype i32 or i64, got f32");
  CHECK(error(Tensor::zeros({}), w, t) ==
        "linear_cross_entropy: x must have at least 1 axis, got shape []");
  const std::string weight =
      "linear_cross_entropy: weight must have shape [V, 4] with V >= 1 (last axis of x [2, 4]), "
      "got ";
  CHECK(error(x, Tensor::zeros({5, 3}), t) == weight + "[5, 3]");
  CHECK(error(x, Tensor::zeros({4}), t) == weight + "[4]");
  CHECK(error(x, Tensor::zeros({0, 4}), t) == weight + "[0, 4]");
  CHECK(error(x, Tensor::zeros({5, 4}, DType::f64), t) ==
        "linear_cross_entropy: weight must have dtype f32 like x, got f64");
  CHECK(error(x, w.to(kMeta), t) ==
        "linear_cross_entropy: weight must be on device cpu like x, got meta");
  CHECK(error(x, w, ids({0, 1, 2}, {3})) ==
        "linear_cross_entropy: targets must have shape [2] (x [2, 4] without the last axis), got "
        "[3]");
  CHECK(error(x, w, t.to(kMeta)) ==
        "linear_cross_entropy: targets must be on device cpu like x, got meta");
  CHECK(error(x, w, ids({0, 5}, {2})) ==
        "linear_cross_entropy: target must be in [0, 5) or ignore_index -100, got 5");
  CHECK(error(x, w, ids({-1, 2}, {2}, DType::i32), {.ignore_index = -2}) ==
        "linear_cross_entropy: target must be in [0, 5) or ignore_index -2, got -1");
  for (const double bad : {-0.1, 1.0})
    CHECK(error(x, w, t, {.label_smoothing = bad}) ==
          message("linear_cross_entropy: label_smoothing must be in [0, 1), got {}", bad));
  for (const Reduction reduction : {Reduction::none, Reduction::mean}) {
    Tensor a = test::random({2, 4}, 16, DType::f32);
    a.set_requires_grad();
    CHECK(error_of([&] {
            Tape outer;
            Tape inner;
            const Tensor loss = linear_cross_entropy(a, w, t, {.reduction = reduction});
            inner.gradients(loss, {a}, Tensor::ones(loss.shape()));
          }) ==
          "linear_cross_entropy: its backward is a fused kernel and can be differentiated only "
          "once; build it from primitive ops, or open a NoGradGuard around the backward pass");
  }
}

}  // namespace weft::test::linear_cross_entropy_test
