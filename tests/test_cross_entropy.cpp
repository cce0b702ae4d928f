#include <doctest/doctest.h>

#include <limits>

#include "weft/autograd/cross_entropy.h"
#include "weft/autograd/elementwise.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft {
namespace {

using test::error_of;
using test::mismatch;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Oracle {
  std::vector<double> loss, grad;  // the loss after the reduction
};

// Textbook double loops over the values that the logits really hold. `dy` has one value a row for
// none and one value otherwise.
Oracle oracle(const Tensor& logits, const std::vector<std::int64_t>& targets,
              const CrossEntropyOptions& o, const std::vector<double>& dy) {
  const auto rows = targets.size();
  const auto classes = static_cast<std::size_t>(logits.dim(-1));
  std::vector<double> x(rows * classes);
  logits.copy_to(x);
  double valid = 0;
  for (const std::int64_t t : targets) valid += t != o.ignore_index;
  const double divisor = o.reduction == Reduction::mean ? std::max(valid, 1.0) : 1;
  Oracle out;
  out.grad.assign(x.size(), 0);
  double total = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    double row_loss = 0;
    if (targets[r] != o.ignore_index) {
      double max = -kInf, sum = 0;
      for (std::size_t c = 0; c < classes; ++c) max = std::max(max, x[r * classes + c]);
      for (std::size_t c = 0; c < classes; ++c) sum += std::exp(x[r * classes + c] - max);
      const double g = dy[o.reduction == Reduction::none ? r : 0] / divisor;
      for (std::size_t c = 0; c < classes; ++c) {
        const double log_p = x[r * classes + c] - max - std::log(sum);
        const bool hit = static_cast<std::int64_t>(c) == targets[r];
        const double q =
            (hit ? 1 - o.label_smoothing : 0.0) + o.label_smoothing / static_cast<double>(classes);
        if (q > 0) row_loss -= q * log_p;
        out.grad[r * classes + c] = g * (std::exp(log_p) - q);
      }
    }
    if (o.reduction == Reduction::none) out.loss.push_back(row_loss);
    total += row_loss;
  }
  if (o.reduction != Reduction::none) out.loss = {total / divisor};
  return out;
}

Tensor ids(const std::vector<std::int64_t>& values, const Shape& shape, DType dtype = DType::i64) {
  return Tensor::from(std::span<const std::int64_t>(values), shape).to(dtype);
}

std::vector<double> values(const Tensor& t) {
  std::vector<double> v(static_cast<std::size_t>(t.numel()));
  t.copy_to(v);
  return v;
}

// The first element off by more than rel * |want| + abs, in words.
std::string far(const Tensor& got, const std::vector<double>& want, double rel, double abs) {
  const std::vector<double> g = values(got);
  if (g.size() != want.size()) return message("{} values, not {}", g.size(), want.size());
  for (std::size_t i = 0; i < g.size(); ++i)
    if (!(std::abs(g[i] - want[i]) <= rel * std::abs(want[i]) + abs))
      return message("element {}: {} where {} was expected", i, g[i], want[i]);
  return "";
}

struct Result {
  Tensor loss, grad;
};

Result run(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& o,
           const Tensor& dy = {}) {
  Tensor x = logits.detach();
  x.set_requires_grad();
  Tape tape;
  const Tensor loss = cross_entropy(x, targets, o);
  const TensorList g = tape.gradients(loss, {x}, dy);
  return {loss, g[0]};
}

// Loss and gradient of every row must match the oracle.
void check_against_oracle(const Tensor& logits, const std::vector<std::int64_t>& targets,
                          const CrossEntropyOptions& o, const std::vector<double>& dy) {
  Shape rows = logits.shape();
  rows.pop_back();
  const DType real = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor cotangent =
      Tensor::from(std::span<const double>(dy), o.reduction == Reduction::none ? rows : Shape{})
          .to(real);
  const Oracle want = oracle(logits, targets, o, values(cotangent));
  const Result got = run(logits, ids(targets, rows), o, cotangent);
  CHECK(got.loss.dtype() == real);
  CHECK(got.grad.dtype() == logits.dtype());
  CHECK(got.grad.shape() == logits.shape());
  const double eps = real == DType::f64 ? 1e-13 : 1e-6;
  CHECK(far(got.loss, want.loss, 4 * eps, 4 * eps) == "");
  // bf16: arithmetic in f32 and one rounding, hence half a unit in the last of 8 bits.
  const double rel = logits.dtype() == DType::bf16 ? 1.0 / 256 : 20 * eps;
  CHECK(far(got.grad, want.grad, rel, eps) == "");
}

}  // namespace

TEST_CASE("golden vectors") {
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

TEST_CASE("every combination agrees with double loops") {
  const std::int64_t rows = 6;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64})
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

TEST_CASE("rows longer than a block, with the maximum in the last one") {
  for (const std::int64_t classes : {2048, 2049, 5000}) {
    Tensor x = test::random({2, classes}, 5, DType::f32);
    x.select(0, 0).select(0, classes - 1).fill_(30);
    for (const std::int64_t target : {std::int64_t{0}, std::int64_t{2047}, classes - 1})
      check_against_oracle(x, {target, target},
                           {.reduction = Reduction::none, .label_smoothing = 0.1}, {1.0, -2.0});
  }
}

// --- seven upstream defects of this kernel, and an eighth of its in-place gradient
// ------------------

TEST_CASE("upstream bug: rows with ignore_index counted") {
  const Tensor x = test::random({3, 5}, 1);
  const Result r = run(x, ids({-100, 2, -100}, {3}), {.reduction = Reduction::sum});
  const Result alone = run(x.slice(0, 1, 2), ids({2}, {1}), {.reduction = Reduction::sum});
  CHECK(mismatch(r.loss, alone.loss, 0) == "");
  CHECK(mismatch(r.grad.slice(0, 1, 2), alone.grad, 0) == "");
  CHECK(mismatch(r.grad.select(0, 0), Tensor::zeros({5}, DType::f64), 0) == "");
  CHECK(mismatch(r.grad.select(0, 2), Tensor::zeros({5}, DType::f64), 0) == "");
  const Result other =
      run(x, ids({3, 2, 3}, {3}), {.reduction = Reduction::sum, .ignore_index = 3});
  CHECK(mismatch(other.grad, r.grad, 0) == "");
}

TEST_CASE("upstream bug: gradient without reduction divided by the number of rows") {
  const Tensor x = test::random({4, 3}, 2);
  const std::vector<std::int64_t> t = {0, 1, 2, 0};
  const Result all =
      run(x, ids(t, {4}), {.reduction = Reduction::none}, Tensor::ones({4}, DType::f64));
  for (int r = 0; r < 4; ++r) {
    const Result one = run(x.slice(0, r, r + 1), ids({t[static_cast<std::size_t>(r)]}, {1}),
                           {.reduction = Reduction::none}, Tensor::ones({1}, DType::f64));
    CHECK(mismatch(all.grad.slice(0, r, r + 1), one.grad, 0) == "");
  }
}

TEST_CASE("upstream bug: backward read values on the host") {
  // The meta device has no values: reading one throws.
  Tensor x = Tensor::empty({4, 3}, DType::bf16, kMeta);
  x.set_requires_grad();
  const Tensor t = Tensor::empty({4}, DType::i64, kMeta);
  for (const Reduction reduction : {Reduction::none, Reduction::mean, Reduction::sum}) {
    Tape tape;
    const Tensor loss = cross_entropy(x, t, {.reduction = reduction, .label_smoothing = 0.1});
    CHECK(loss.shape() == (reduction == Reduction::none ? Shape{4} : Shape{}));
    CHECK(loss.dtype() == DType::f32);
    const TensorList g = tape.gradients(loss, {x}, Tensor::empty(loss.shape(), DType::f32, kMeta));
    CHECK(g[0].is_meta());
    CHECK(g[0].shape() == x.shape());
    CHECK(g[0].dtype() == DType::bf16);
  }
}

TEST_CASE("upstream bug: the first row's dy was used for all rows") {
  const Tensor x = test::random({3, 5}, 4);
  check_against_oracle(x, {1, 2, 3}, {.reduction = Reduction::none}, {0, 1, -3});
  const Result r = run(x, ids({1, 2, 3}, {3}), {.reduction = Reduction::none},
                       Tensor::of({0, 1, 1}, {3}, DType::f64));
  CHECK(mismatch(r.grad.select(0, 0), Tensor::zeros({5}, DType::f64), 0) == "");
  CHECK(mismatch(r.grad, Tensor::zeros({3, 5}, DType::f64), 1e-3) != "");
}

TEST_CASE("upstream bug: dy that is not contiguous was read wrongly") {
  const Tensor x = test::random({2, 3, 5}, 6);
  const Tensor t = ids({0, 1, 2, 3, 4, 0}, {2, 3});
  const Tensor dy = test::random({2, 3}, 7);
  const CrossEntropyOptions o = {.reduction = Reduction::none};
  const Result plain = run(x, t, o, dy);
  CHECK(mismatch(run(x, t, o, test::strided(dy)).grad, plain.grad, 0) == "");
  const Tensor turned = dy.transpose(0, 1).contiguous().transpose(0, 1);
  REQUIRE_FALSE(turned.is_contiguous());
  CHECK(mismatch(run(x, t, o, turned).grad, plain.grad, 0) == "");
  const Tensor same = Tensor::full({1, 1}, 2, DType::f64).expand({2, 3});  // strides 0
  CHECK(mismatch(run(x, t, o, same).grad, run(x, t, o, Tensor::full({2, 3}, 2, DType::f64)).grad,
                 0) == "");
}

TEST_CASE("upstream bug: mean divided by ignored rows too") {
  const Tensor x = test::random({8, 5}, 8);
  const Result r = run(x, ids({1, 2, -100, -100, -100, -100, -100, -100}, {8}), {});
  const Result two = run(x.slice(0, 0, 2), ids({1, 2}, {2}), {});
  CHECK(mismatch(r.loss, two.loss, 0) == "");
  CHECK(mismatch(r.grad.slice(0, 0, 2), two.grad, 0) == "");
}

TEST_CASE("upstream bug: transposed logits gave wrong losses") {
  const Tensor sbv = test::random({3, 2, 5}, 9);
  const Tensor t = ids({0, 1, 2, 3, 4, 0}, {2, 3});
  const Tensor bsv = sbv.transpose(0, 1);
  REQUIRE_FALSE(bsv.is_contiguous());
  const CrossEntropyOptions o = {.reduction = Reduction::none};
  const Tensor dy = test::random({2, 3}, 10);
  const Result want = run(bsv.contiguous(), t, o, dy);
  const Result got = run(bsv, t, o, dy);
  CHECK(mismatch(got.loss, want.loss, 0) == "");
  CHECK(mismatch(got.grad, want.grad, 0) == "");
  const Result gaps = run(test::strided(bsv), t, o, dy);
  CHECK(mismatch(gaps.loss, want.loss, 0) == "");
  CHECK(mismatch(gaps.grad, want.grad, 0) == "");
  // Targets with strides of their own.
  const Tensor turned = t.transpose(0, 1).contiguous().transpose(0, 1);
  CHECK(mismatch(run(bsv, turned, o, dy).loss, want.loss, 0) == "");
}

TEST_CASE("upstream bug: bf16 gradient rounded twice over the logits") {
  // p of the target is 1 - 1e-3: a gradient of -1e-3, which bf16 arithmetic on p would make 0.
  const double gap = std::log(999.0);
  const Tensor x = Tensor::of({gap, 0}, {1, 2}).to(DType::bf16);
  const Tensor before = x.clone();
  const std::vector<double> logits = values(x);
  const double p = 1 / (1 + std::exp(logits[1] - logits[0]));
  const Tensor dy = Tensor::of({0.3}, {1});
  const Result r = run(x, ids({0}, {1}), {.reduction = Reduction::none}, dy);
  const bf16 want(static_cast<float>(static_cast<double>(0.3f) * (p - 1)));
  CHECK(values(r.grad)[0] == static_cast<double>(static_cast<float>(want)));
  CHECK(values(r.grad)[1] == -values(r.grad)[0]);
  CHECK(mismatch(x, before, 0) == "");
  // Each of these scales is applied before the only rounding.
  const Tensor many = (test::random({4, 64}, 11) * 3.0).to(DType::bf16);
  const std::vector<std::int64_t> t = {3, 60, 0, 31};
  const std::vector<double> scales = {0.01, 0.03, 0.1, 0.7};
  const CrossEntropyOptions o = {.reduction = Reduction::none};
  const Tensor d = Tensor::from(std::span<const double>(scales), {4}).to(DType::f32);
  const Result got = run(many, ids(t, {4}), o, d);
  const Oracle exact = oracle(many, t, o, values(d));
  const std::vector<double> g = values(got.grad);
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double half_ulp = std::exp2(std::floor(std::log2(std::abs(exact.grad[i]))) - 8);
    CHECK(std::abs(g[i] - exact.grad[i]) <= half_ulp * 1.001);
  }
}

// ----------------------------------------------------------------------------------------------------

TEST_CASE("gradcheck") {
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

TEST_CASE("one set of logits for two losses") {
  const auto f = [](const TensorList& in) {
    return cross_entropy(in[0], in[1]) + cross_entropy(in[0], in[2], {.reduction = Reduction::sum});
  };
  Tensor x = test::random({2, 3}, 13);
  x.set_requires_grad();
  CHECK(gradcheck(f, {x, ids({0, 1}, {2}), ids({2, 1}, {2})}) == "");
}

TEST_CASE("shapes: one row without axes, three axes, no rows") {
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

TEST_CASE("all rows ignored: 0, not NaN, whatever the logits") {
  const Tensor x = Tensor::full({2, 3}, std::nan(""));
  const Result r = run(x, ids({-100, -100}, {2}), {});
  CHECK(r.loss.item() == 0);
  CHECK(mismatch(r.grad, Tensor::zeros({2, 3}), 0) == "");
}

TEST_CASE("huge logits do not overflow, and an offset changes nothing") {
  const Tensor x = Tensor::of({1000, 1001, 999}, {1, 3});
  const Tensor shifted = Tensor::of({0, 1, -1}, {1, 3});
  for (const double smoothing : {0.0, 0.1}) {
    const Result a = run(x, ids({0}, {1}), {.label_smoothing = smoothing});
    const Result b = run(shifted, ids({0}, {1}), {.label_smoothing = smoothing});
    CHECK(mismatch(a.loss, b.loss, 1e-6) == "");
    CHECK(mismatch(a.grad, b.grad, 1e-7) == "");
  }
}

TEST_CASE("-inf and NaN among the logits") {
  const double nan = std::nan("");
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    // A masked class: it gets no probability and no gradient.
    const Result masked = run(Tensor::of({-kInf, 1, 2}, {1, 3}, dtype), ids({1}, {1}), {});
    const Result two = run(Tensor::of({1, 2}, {1, 2}, dtype), ids({0}, {1}), {});
    CHECK(mismatch(masked.loss, two.loss, 0) == "");
    CHECK(values(masked.grad)[0] == 0);
    CHECK(mismatch(masked.grad.slice(1, 1, 3), two.grad, 0) == "");
    // The target itself is impossible.
    CHECK(run(Tensor::of({-kInf, 1, 2}, {1, 3}, dtype), ids({0}, {1}), {}).loss.item() == kInf);
    // So is everything: loss +inf, gradient 0, and the other row keeps its own.
    const Result all = run(Tensor::of({-kInf, -kInf, 1, 2}, {2, 2}, dtype), ids({0, 0}, {2}),
                           {.reduction = Reduction::none},
                           Tensor::ones({2}, dtype == DType::f64 ? dtype : DType::f32));
    CHECK(values(all.loss)[0] == kInf);
    CHECK(values(all.loss)[1] == values(two.loss)[0]);
    CHECK(mismatch(all.grad.select(0, 0), Tensor::zeros({2}, dtype), 0) == "");
    CHECK(mismatch(all.grad.select(0, 1), two.grad.select(0, 0), 0) == "");
    // A NaN is never hidden.
    for (const double other : {1.0, -kInf})
      for (const double smoothing : {0.0, 0.1}) {
        const Result bad = run(Tensor::of({other, nan, other}, {1, 3}, dtype), ids({0}, {1}),
                               {.label_smoothing = smoothing});
        CHECK(std::isnan(bad.loss.item()));
        CHECK(std::isnan(values(bad.grad)[0]));
      }
  }
}

TEST_CASE("count_valid") {
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

TEST_CASE("the number of threads changes no bit") {
  const Tensor x = test::random({33, 3000}, 15, DType::f32);
  std::vector<std::int64_t> t;
  for (int r = 0; r < 33; ++r) t.push_back(r % 5 ? r * 17 : -100);
  const int before = num_threads();
  set_num_threads(1);
  const Result one = run(x, ids(t, {33}), {.label_smoothing = 0.1});
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    const Result many = run(x, ids(t, {33}), {.label_smoothing = 0.1});
    CHECK(test::different_bits(many.loss, one.loss) == "");
    CHECK(test::different_bits(many.grad, one.grad) == "");
  }
  set_num_threads(before);
}

TEST_CASE("every instruction set gives the same bits") {
  const std::string best = simd().name;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = test::random({3, 4111}, 17, dtype);
    const Tensor t = ids({4110, -100, 2048}, {3});
    set_simd("scalar");
    const Result scalar = run(x, t, {.label_smoothing = 0.1});
    for (const char* set : {"avx2", "avx512"}) {
      if (!find_simd(set)) continue;
      CAPTURE(set);
      set_simd(set);
      const Result r = run(x, t, {.label_smoothing = 0.1});
      CHECK(test::different_bits(r.loss, scalar.loss) == "");
      CHECK(test::different_bits(r.grad, scalar.grad) == "");
    }
    set_simd(best.c_str());
  }
}

TEST_CASE("errors") {
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
        }) == "cross_entropy: logits must have dtype f32, f64 or bf16, got i64");
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

}  // namespace weft
