#include <doctest/doctest.h>

#include <cmath>

#include "weft/autograd/cross_entropy.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/losses.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/softmax.h"
#include "weft/tests/support.h"

namespace weft::losses_test {
using test::error_of;
using test::mismatch;

namespace {

struct Loss {
  const char* name;
  const char* label;
  Tensor (*op)(const Tensor& y, const Tensor& target, Reduction reduction);
  double (*definition)(double y, double target);
};
const Loss kLosses[] = {
    {"l1_loss", "y", l1_loss, [](double y, double t) { return std::fabs(y - t); }},
    {"huber_loss", "y",
     [](const Tensor& y, const Tensor& t, Reduction r) { return huber_loss(y, t, 0.5, r); },
     [](double y, double t) {
       const double e = std::fabs(y - t);
       return e <= 0.5 ? e * e / 2 : 0.5 * (e - 0.25);
     }},
    {"binary_cross_entropy_with_logits", "logits", binary_cross_entropy_with_logits,
     [](double x, double t) {
       const double p = 1 / (1 + std::exp(-x));
       return -t * std::log(p) - (1 - t) * std::log(1 - p);
     }},
    {"kl_div", "log_probs", kl_div, [](double x, double t) { return t * (std::log(t) - x); }},
};

// Between 0.1 and 0.9: a probability for the losses that need one.
Tensor targets_of(const Shape& s, DType t = DType::f64) {
  return test::random_in(s, 0.1, 0.9, 2, t);
}

}  // namespace

TEST_CASE("losses: every dtype, shape and reduction against the definition") {
  for (const Loss& loss : kLosses)
    for (const Shape& s : {Shape{}, Shape{1}, Shape{3, 5}, Shape{2, 3, 7}, Shape{0, 4}})
      for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        CAPTURE(std::string(loss.name));
        CAPTURE(to_string(s));
        const Tensor y = test::random(s, 1, t), target = targets_of(s, t);
        const std::vector<double> v = test::values(y), w = test::values(target);
        Tensor want = Tensor::empty(s, DType::f64);
        double sum = 0;
        for (std::size_t i = 0; i < v.size(); ++i)
          sum += want.data<double>()[i] = loss.definition(v[i], w[i]);
        const Tensor each = loss.op(y, test::strided(target), Reduction::none);
        CHECK(each.dtype() == t);
        CHECK(mismatch(each, want, test::tolerance(t), 1) == "");
        const Tensor total = Tensor::full({}, sum, DType::f64);
        CHECK(mismatch(loss.op(y, target, Reduction::sum), total, test::tolerance(t), 1) == "");
        if (!v.empty())
          CHECK(mismatch(loss.op(y, target, Reduction::mean), total / static_cast<double>(v.size()),
                         test::tolerance(t), 1) == "");
      }
}

TEST_CASE("losses: gradients of both operands agree with finite differences, twice") {
  GradcheckOptions o;
  o.second_order = true;
  o.step = 1e-5;
  o.tolerance = 1e-5;
  for (const Loss& loss : kLosses)
    for (const Shape& s : {Shape{1}, Shape{3, 5}, Shape{0, 2}}) {
      CAPTURE(std::string(loss.name));
      const auto f = [&](const TensorList& in) {
        return square(loss.op(in[0], in[1], Reduction::none));
      };
      CHECK(gradcheck(f, {test::random(s), targets_of(s)}, o) == "");
      CHECK(gradcheck(f, {test::strided(test::random(s)), test::strided(targets_of(s))}) == "");
      const auto reduced = [&](const TensorList& in) {
        return loss.op(in[0], in[1], Reduction::sum);
      };
      CHECK(gradcheck(reduced, {test::random(s), targets_of(s)}) == "");
    }
}

TEST_CASE("losses: binary cross entropy keeps small and large values") {
  for (const DType t : {DType::f32, DType::f64}) {
    const Tensor x = Tensor::of({200, -200, -200, 200, 30, -30}, {6}, t).set_requires_grad();
    const Tensor target = Tensor::of({1, 0, 1, 0, 1, 0}, {6}, t);
    Tape tape;
    const Tensor y = binary_cross_entropy_with_logits(x, target, Reduction::none);
    const double small = std::exp(-30.0);
    CHECK(mismatch(y.narrow(0, 0, 4), Tensor::of({0, 0, 200, 200}, {4}, DType::f64), 1e-30) == "");
    CHECK(mismatch(y.narrow(0, 4, 2) / small, Tensor::of({1, 1}, {2}), 1e-6) == "");
    const Tensor g = tape.gradients(sum(y), {x})[0];
    CHECK(mismatch(g.narrow(0, 0, 4), Tensor::of({0, 0, -1, 1}, {4}), 1e-30) == "");
  }
}

TEST_CASE("losses: huber_loss is quadratic also where y is the target") {
  const Tensor target = Tensor::of({0.5, -1, 2}, DType::f64);
  GradcheckOptions o;
  o.second_order = true;
  const auto f = [&](const TensorList& in) { return huber_loss(in[0], target); };
  CHECK(gradcheck(f, {target.clone()}, o) == "");
}

TEST_CASE("losses: a target of 0 adds nothing to the divergence") {
  const Tensor log_probs = Tensor::of({-INFINITY, -1}, {2}, DType::f64).set_requires_grad();
  const Tensor target = Tensor::of({0, 1}, {2}, DType::f64).set_requires_grad();
  Tape tape;
  const Tensor y = kl_div(log_probs, target, Reduction::sum);
  CHECK(y.item() == 1);
  const TensorList g = tape.gradients(y, {log_probs, target});
  CHECK(test::values(g[0]) == std::vector<double>{0, -1});
  CHECK(test::values(g[1]) == std::vector<double>{0, 2});
}

TEST_CASE("losses: nll_loss of log_softmax is cross_entropy") {
  const Tensor targets = Tensor::of({2, 0, -100, 4}, {2, 2}, DType::i64);
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const Reduction r : {Reduction::none, Reduction::mean, Reduction::sum}) {
      const Tensor logits = test::random({2, 2, 5}, 3, t);
      CHECK(mismatch(nll_loss(log_softmax(logits), targets, r),
                     cross_entropy(logits.to(DType::f64), targets, {.reduction = r}),
                     test::tolerance(t), 1) == "");
    }
  const auto f = [&](const TensorList& in) { return nll_loss(square(in[0]), targets); };
  GradcheckOptions o;
  o.second_order = true;
  o.step = 1e-5;
  o.tolerance = 1e-5;
  CHECK(gradcheck(f, {test::random({2, 2, 5})}, o) == "");
  // 257 targets: bf16 has no such number.
  const Tensor many = Tensor::full({257, 2}, -1, DType::bf16);
  CHECK(nll_loss(many, Tensor::zeros({257}, DType::i64)).item() == 1);
  const Tensor none = Tensor::full({2}, -100, DType::i32);
  CHECK(nll_loss(test::random({2, 5}), none).item() == 0);
  CHECK(nll_loss(Tensor::of({{-1, -2}}), Tensor::of({1}, {1}, DType::i64)).item() == 2);
}

TEST_CASE("losses: a target that nll_loss does not have is named") {
  const Tensor log_probs = log_softmax(test::random({2, 3}));
  for (const DType dtype : {DType::i32, DType::i64})
    CHECK(error_of([&] {
            nll_loss(log_probs, Tensor::of({1, 5}, {2}, dtype));
          }) == "nll_loss: target must be in [0, 3) or ignore_index -100, got 5");
}

TEST_CASE("losses: the meta device, and errors that name the rule and the value") {
  const Tensor y = Tensor::ones({2, 3}), i = Tensor::ones({2, 3}, DType::i64);
  for (const Loss& loss : kLosses) {
    const std::string op = loss.name, label = loss.label;
    const auto text = [&](const Tensor& a, const Tensor& b) {
      return error_of([&] { loss.op(a, b, Reduction::mean); });
    };
    CHECK(text(y, Tensor::ones({3})) ==
          op + ": target must have " + label + "'s shape [2, 3], got [3]");
    CHECK(text(y, i) == op + ": target must have " + label + "'s dtype f32, got i64");
    CHECK(text(y, y.to(kMeta)) == op + ": target must be on " + label + "'s device cpu, got meta");
    CHECK(text(i, i) == op + ": dtype must be one of f32, f64, bf16, f16, got i64");
    CHECK(text({}, y) == op + ": " + label + " must be a tensor, got a null handle");
    CHECK(loss.op(y.to(kMeta), y.to(kMeta), Reduction::none).shape() == Shape{2, 3});
  }
  CHECK(error_of([&] { huber_loss(y, y, 0); }) == "huber_loss: delta must be above 0, got 0");
  const Tensor t = Tensor::zeros({2}, DType::i64);
  CHECK(error_of([&] { nll_loss(y, y); }) ==
        "nll_loss: targets must have dtype i32 or i64, got f32");
  CHECK(error_of([&] { nll_loss(i, t); }) ==
        "nll_loss: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(error_of([&] { nll_loss(y, i); }) ==
        "nll_loss: targets must have shape [2] (log_probs [2, 3]), got [2, 3]");
  CHECK(error_of([&] { nll_loss(Tensor::ones({}), t); }) ==
        "nll_loss: log_probs must have at least 1 axis, got a scalar");
  CHECK(nll_loss(y.to(kMeta), t.to(kMeta)).shape() == Shape{});
}

}  // namespace weft::losses_test
