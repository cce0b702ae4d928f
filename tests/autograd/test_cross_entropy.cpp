#include <doctest/doctest.h>

#include "weft/core/parallel.h"
#include "weft/tests/cross_entropy_oracle.h"
#include "weft/tests/simd_tables.h"

namespace weft::test::cross_entropy_test {

TEST_CASE("cross_entropy: golden values") {
  const Tensor x = Tensor::of({1, 2, 3, 4}, {1, 4}, DType::f64);
  const Tensor target = ids({2}, {1});
  const Result plain = run(x, target, {});
  CHECK(far(plain.loss, {1.4401896986}, 0, 1e-10) == "");
  CHECK(far(plain.grad, {0.0320586033, 0.0871443187, -0.7631171819, 0.6439142599}, 0, 1e-10) == "");
  const Result smooth = run(x, target, {.label_smoothing = 0.1});
  CHECK(far(smooth.loss, {1.4901896986}, 0, 1e-10) == "");
  CHECK(far(smooth.grad, {0.0070586033, 0.0621443187, -0.6881171819, 0.6189142599}, 0, 1e-10) ==
        "");
}

TEST_CASE("cross_entropy: every combination of options equals double loops") {
  const std::int64_t rows = 6;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const std::int64_t classes : {1, 3, 7, 1025}) {
      const Tensor x = (test::random({rows, classes}, 3) * 4.0).to(dtype);
      for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum})
        for (const double smoothing : {0.0, 0.1})
          for (const char* ignored : {"none", "some", "all", "first row"}) {
            CAPTURE(name(dtype));
            CAPTURE(classes);
            CAPTURE(static_cast<int>(reduction));
            CAPTURE(smoothing);
            CAPTURE(ignored);
            const std::string which = ignored;
            std::vector<std::int64_t> targets;
            for (std::int64_t r = 0; r < rows; ++r) {
              const bool skip = which == "all" || (which == "some" && r % 2 == 1) ||
                                (which == "first row" && r == 0);
              targets.push_back(skip ? -100 : (r * 397 + 1) % classes);
            }
            const std::vector<double> dy = {0, -1.5, 0.25, 2, 0, 0.7};
            check_against_oracle(x, targets, {.reduction = reduction, .label_smoothing = smoothing},
                                 reduction == Reduction::none ? dy : std::vector<double>{-0.37});
          }
    }
}

TEST_CASE("cross_entropy: the maximum may be in the last block of a long row") {
  for (const std::int64_t classes : {2048, 2049, 5000}) {
    Tensor x = test::random({2, classes}, 5, DType::f32);
    x.select(0, 0).select(0, classes - 1).fill_(30);
    for (const std::int64_t target : {std::int64_t{0}, std::int64_t{2047}, classes - 1})
      check_against_oracle(x, {target, target},
                           {.reduction = Reduction::none, .label_smoothing = 0.1}, {1.0, -2.0});
  }
}

TEST_CASE("cross_entropy: gradcheck") {
  for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum})
    for (const double smoothing : {0.0, 0.1}) {
      const auto f = [&](const TensorList& in) {
        return cross_entropy(in[0], in[1], {.reduction = reduction, .label_smoothing = smoothing});
      };
      Tensor x = test::random({3, 7}, 12);
      x.set_requires_grad();
      CHECK(gradcheck(f, {x, ids({6, -100, 0}, {3})}) == "");
      Tensor gaps = test::strided(test::random({3, 7}, 12));
      gaps.set_requires_grad();
      CHECK(gradcheck(f, {gaps, ids({6, 2, 0}, {3}, DType::i32)}) == "");
      Tensor none = Tensor::empty({0, 7}, DType::f64);
      none.set_requires_grad();
      CHECK(gradcheck(f, {none, ids({}, {0})}) == "");
    }
}

TEST_CASE("cross_entropy: one set of logits for two losses") {
  const auto f = [](const TensorList& in) {
    return cross_entropy(in[0], in[1]) + cross_entropy(in[0], in[2], {.reduction = Reduction::sum});
  };
  Tensor x = test::random({2, 3}, 13);
  x.set_requires_grad();
  CHECK(gradcheck(f, {x, ids({0, 1}, {2}), ids({2, 1}, {2})}) == "");
}

TEST_CASE("cross_entropy: one row without axes, three axes and zero rows") {
  const Tensor x = test::random({5}, 14);
  const Result one = run(x, ids({3}, {}), {.reduction = Reduction::none});
  CHECK(one.loss.shape() == Shape{});
  CHECK(far(one.loss, oracle(x, {3}, {}, {1}).loss, 1e-13, 0) == "");
  CHECK(cross_entropy(test::random({2, 3, 5}), Tensor::zeros({2, 3}, DType::i32),
                      {.reduction = Reduction::none})
            .shape() == Shape{2, 3});
  for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
    const Result none =
        run(Tensor::empty({0, 5}, DType::f64), ids({}, {0}), {.reduction = reduction});
    CHECK(none.loss.item() == 0);
    CHECK(none.grad.shape() == Shape{0, 5});
  }
}

TEST_CASE("cross_entropy: all rows ignored gives 0") {
  const Tensor x = Tensor::full({2, 3}, std::nan(""));
  const Result r = run(x, ids({-100, -100}, {2}), {});
  CHECK(r.loss.item() == 0);
  CHECK(mismatch(r.grad, Tensor::zeros({2, 3}), 0) == "");
}

TEST_CASE("cross_entropy: huge logits do not overflow and an offset changes nothing") {
  const Tensor x = Tensor::of({1000, 1001, 999}, {1, 3});
  const Tensor shifted = Tensor::of({0, 1, -1}, {1, 3});
  for (const double smoothing : {0.0, 0.1}) {
    const Result a = run(x, ids({0}, {1}), {.label_smoothing = smoothing});
    const Result b = run(shifted, ids({0}, {1}), {.label_smoothing = smoothing});
    CHECK(mismatch(a.loss, b.loss, 1e-6) == "");
    CHECK(mismatch(a.grad, b.grad, 1e-7) == "");
  }
}

TEST_CASE("cross_entropy: -inf and NaN among the logits") {
  const double nan = std::nan("");
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    // A masked class gets no probability and no gradient.
    const Result masked = run(Tensor::of({-kInf, 1, 2}, {1, 3}, dtype), ids({1}, {1}), {});
    const Result two = run(Tensor::of({1, 2}, {1, 2}, dtype), ids({0}, {1}), {});
    CHECK(mismatch(masked.loss, two.loss, 0) == "");
    CHECK(values(masked.grad)[0] == 0);
    CHECK(mismatch(masked.grad.slice(1, 1, 3), two.grad, 0) == "");
    // The target itself is impossible.
    CHECK(run(Tensor::of({-kInf, 1, 2}, {1, 3}, dtype), ids({0}, {1}), {}).loss.item() == kInf);
    // All classes are impossible: loss +inf, gradient 0, and the other row keeps its own.
    const Result all = run(Tensor::of({-kInf, -kInf, 1, 2}, {2, 2}, dtype), ids({0, 0}, {2}),
                           {.reduction = Reduction::none},
                           Tensor::ones({2}, dtype == DType::f64 ? dtype : DType::f32));
    CHECK(values(all.loss)[0] == kInf);
    CHECK(values(all.loss)[1] == values(two.loss)[0]);
    CHECK(mismatch(all.grad.select(0, 0), Tensor::zeros({2}, dtype), 0) == "");
    CHECK(mismatch(all.grad.select(0, 1), two.grad.select(0, 0), 0) == "");
    // A NaN is always visible in the loss.
    for (const double other : {1.0, -kInf})
      for (const double smoothing : {0.0, 0.1}) {
        const Result bad = run(Tensor::of({other, nan, other}, {1, 3}, dtype), ids({0}, {1}),
                               {.label_smoothing = smoothing});
        CHECK(std::isnan(bad.loss.item()));
        CHECK(std::isnan(values(bad.grad)[0]));
      }
  }
}

TEST_CASE("cross_entropy: count_valid counts the rows that are not ignored") {
  CHECK(count_valid(ids({1, -100, 3}, {3})).item_int() == 2);
  CHECK(count_valid(ids({1, 7, 7}, {3}, DType::i32), 7).item_int() == 1);
  CHECK(count_valid(ids({}, {0})).item_int() == 0);
  CHECK(count_valid(ids({1, 7, 7}, {3})).dtype() == DType::i64);
  const Tensor t = ids({1, -100, -100, -100}, {2, 2});
  CHECK(count_valid(t.transpose(0, 1).slice(0, 0, 1)).item_int() == 1);
  CHECK(count_valid(Tensor::empty({3}, DType::i64, kMeta)).is_meta());
  CHECK(error_of([] { count_valid(Tensor::ones({2})); }) ==
        "count_valid: targets must have dtype i32 or i64, got f32");
}

TEST_CASE("cross_entropy: the number of threads changes no bit") {
  const Tensor x = test::random({33, 3000}, 15, DType::f32);
  std::vector<std::int64_t> t;
  for (int r = 0; r < 33; ++r) t.push_back(r % 5 ? r * 17 : -100);
  const test::RestoreThreads restore;
  set_num_threads(1);
  const Result one = run(x, ids(t, {33}), {.label_smoothing = 0.1});
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    const Result many = run(x, ids(t, {33}), {.label_smoothing = 0.1});
    CHECK(test::different_bits(many.loss, one.loss) == "");
    CHECK(test::different_bits(many.grad, one.grad) == "");
  }
}

TEST_CASE("cross_entropy: every instruction set gives the same bits") {
  const test::RestoreKernels kernels_of_process;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Tensor x = test::random({3, 4111}, 17, dtype);
    const Tensor t = ids({4110, -100, 2048}, {3});
    set_simd("scalar");
    const Result scalar = run(x, t, {.label_smoothing = 0.1});
    for (const SimdTable* table : test::simd_tables()) {
      if (table == find_simd("scalar")) continue;
      CAPTURE(table->name);
      set_simd(table->name);
      const Result r = run(x, t, {.label_smoothing = 0.1});
      CHECK(test::different_bits(r.loss, scalar.loss) == "");
      CHECK(test::different_bits(r.grad, scalar.grad) == "");
    }
  }
}

TEST_CASE("cross_entropy: errors name the rule") {
  const Tensor x = Tensor::zeros({2, 5});
  const Tensor t = ids({0, 1}, {2});
  CHECK(error_of([&] {
          cross_entropy(x, ids({0, 7}, {2}));
        }) == "cross_entropy: target must be in [0, 5) or ignore_index -100, got 7");
  CHECK(error_of([&] {
          cross_entropy(x, ids({-1, 7}, {2}, DType::i32), {.ignore_index = -2});
        }) == "cross_entropy: target must be in [0, 5) or ignore_index -2, got -1");
  CHECK(error_of([&] {
          cross_entropy(x, ids({5, 0}, {2}));
        }) == "cross_entropy: target must be in [0, 5) or ignore_index -100, got 5");
  CHECK(error_of([&] {
          cross_entropy(Tensor::zeros({2, 5}, DType::i64), t);
        }) == "cross_entropy: logits must have dtype f32, f64, bf16 or f16, got i64");
  CHECK(error_of([&] { cross_entropy(x, Tensor::zeros({2})); }) ==
        "cross_entropy: targets must have dtype i32 or i64, got f32");
  CHECK(error_of([&] {
          cross_entropy(x, ids({0, 1, 2}, {3}));
        }) ==
        "cross_entropy: targets must have shape [2] (logits [2, 5] without the last axis), got "
        "[3]");
  CHECK(error_of([&] {
          cross_entropy(Tensor::zeros({2, 0}), t);
        }) == "cross_entropy: logits must have a last axis of at least 1 class, got shape [2, 0]");
  CHECK(error_of([&] { cross_entropy(Tensor::zeros({}), t); }) ==
        "cross_entropy: logits must have a last axis of at least 1 class, got shape []");
  CHECK(error_of([&] { cross_entropy(x, Tensor::empty({2}, DType::i64, kMeta)); }) ==
        "cross_entropy: targets must be on device cpu like the logits, got meta");
  for (const double bad : {-0.1, 1.0})
    CHECK(error_of([&] { cross_entropy(x, t, {.label_smoothing = bad}); }) ==
          message("cross_entropy: label_smoothing must be in [0, 1), got {}", bad));
  Tensor w = test::random({2, 5}, 16);
  w.set_requires_grad();
  CHECK(error_of([&] {
          Tape outer;
          Tape inner;
          const Tensor loss = cross_entropy(w, t);
          inner.gradients(loss, {w});
        }) ==
        "cross_entropy: its backward is a fused kernel and can be differentiated only once; build "
        "it from primitive ops, or open a NoGradGuard around the backward pass");
}

}  // namespace weft::test::cross_entropy_test
