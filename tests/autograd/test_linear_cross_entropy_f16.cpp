#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear_cross_entropy.h"
#include "weft/autograd/reduce.h"
#include "weft/tests/cross_entropy_oracle.h"

// In f16 the gradients of a mean over many rows are below the smallest number, until a loss scale
// multiplies them.
namespace weft::test::linear_cross_entropy_f16_test {
namespace {

constexpr std::int64_t kRows = 4096, kClasses = 40;
constexpr double kScale = 4096;

// Every target is class 0; each other class has a probability of about 1e-4, and 1e-4 / 4096 is 0
// in f16.
Tensor inputs() { return (test::random({kRows, 1}, 1) * 0.02 + 1).to(DType::f16); }
Tensor weights() {
  const Tensor w = test::random({kClasses, 1}, 2) * 0.1 - 9.2;
  w[0].fill_(0);
  return w.to(DType::f16);
}
Tensor targets(std::int64_t target = 0) { return Tensor::full({kRows}, target, DType::i64); }

struct Gradients {
  Tensor dx, dw;  // f64, of a scale of 1
};

Gradients run(DType t, double scale, const Tensor& target, const CrossEntropyOptions& o = {},
              bool part = false, bool f32_sum = false) {
  const Tensor x = inputs().to(t).detach().set_requires_grad();
  const Tensor w = weights().to(t).detach().set_requires_grad();
  if (f32_sum) w.set_main_grad(Tensor::zeros(w.shape()));
  Tape tape;
  detail::ClassPart all;
  all.range = {0, kClasses};
  all.most = kClasses;
  all.gather = [](const Tensor& own) { return own.unsqueeze(0); };
  const Tensor loss = part ? detail::linear_cross_entropy(x, w, target, o, all)
                           : detail::linear_cross_entropy(x, w, target, o, 1000);
  loss.backward(Tensor::full({}, scale, loss.dtype()));
  const Tensor dw = f32_sum ? w.main_grad() : w.grad();
  return {x.grad().to(DType::f64) / scale, dw.to(DType::f64) / scale};
}

}  // namespace

TEST_CASE("linear_cross_entropy: a loss scale keeps small f16 gradients of a mean") {
  const Gradients want = run(DType::f64, 1, targets());
  for (const bool part : {false, true})
    for (const bool f32_sum : {false, true}) {
      CAPTURE(part);
      CAPTURE(f32_sum);
      const Gradients got = run(DType::f16, kScale, targets(), {}, part, f32_sum);
      // Both are about 1 times these factors. Logits are rounded to 2^-8.
      CHECK(mismatch(got.dw * 1e4, want.dw * 1e4, 1e-2) == "");
      CHECK(mismatch(got.dx * 1e5, want.dx * 1e5, 1e-2) == "");
    }
}

TEST_CASE("linear_cross_entropy: the f16 gradients of a mean and of a sum differ by the count") {
  const Gradients mean = run(DType::f16, kRows, targets(3));
  const Gradients total = run(DType::f16, 1, targets(3), {.reduction = Reduction::sum});
  CHECK(mismatch(mean.dx * kRows, total.dx, 1e-3) == "");
  CHECK(mismatch(mean.dw * kRows, total.dw, 1e-3) == "");
  const Gradients none = run(DType::f16, kScale, targets(-100));
  CHECK(abs(none.dx).max().item() == 0);
  CHECK(abs(none.dw).max().item() == 0);
}

}  // namespace weft::test::linear_cross_entropy_f16_test
