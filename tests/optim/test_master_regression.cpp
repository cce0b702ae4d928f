// What master weights are for: a regression in bf16 that converges as in f32.
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/mse.h"
#include "weft/optim/adamw.h"
#include "weft/tests/support.h"

namespace weft::master_regression_test {
namespace {

using optim::AdamW;
using optim::MasterWeights;

// The loss of a noisy linear regression in bf16 after 1000 steps, averaged over the last 100.
double regression(MasterWeights form, DType state) {
  const Tensor w = test::random({8, 24}, 1, DType::bf16).set_requires_grad();
  const Tensor truth = test::random({8, 24}, 2, DType::bf16);
  AdamW opt({{"w", w}}, {.lr = 2e-3,
                         .beta2 = 0.95,
                         .weight_decay = 0,
                         .m_dtype = state,
                         .v_dtype = state,
                         .master_weights = form});
  double sum = 0;
  for (std::uint64_t t = 0; t < 1000; ++t) {
    const Tensor x = test::random({32, 24}, 10 + t, DType::bf16);
    const Tensor noise = test::random({32, 8}, 5000 + t, DType::bf16);
    const Tensor y = add(linear(x, truth), mul(noise, 0.1));
    Tape tape;
    const Tensor loss = mse_loss(linear(x, w), y);
    if (t >= 900) sum += loss.item();
    opt.zero_grad();
    loss.backward();
    opt.step(optim::measure_clip(opt.parameters(), 1));
  }
  return sum / 100;
}

}  // namespace

TEST_CASE("master_regression: O5 a regression with remainders and bf16 states ends within 2 %") {
  const double want = regression(MasterWeights::f32, DType::f32);
  CHECK(regression(MasterWeights::remainder, DType::f32) == doctest::Approx(want).epsilon(0.02));
  CHECK(regression(MasterWeights::remainder, DType::bf16) == doctest::Approx(want).epsilon(0.02));
  // Without master weights it does not.
  CHECK(regression(MasterWeights::none, DType::f32) > 1.02 * want);
}

}  // namespace weft::master_regression_test
