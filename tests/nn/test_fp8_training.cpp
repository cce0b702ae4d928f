// Sixty steps of a small model in FP8 reach the loss of f32; planted errors do not.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "weft/core/random.h"
#include "weft/nn/fp8.h"
#include "weft/nn/gpt.h"
#include "weft/nn/linear.h"
#include "weft/nn/walk.h"
#include "weft/optim/adamw.h"
#include "weft/optim/clip.h"
#include "weft/tests/support.h"

namespace weft::fp8_training_test {

namespace {

using fp8::Recipe;
using fp8::Scaling;
using nn::Gpt;

constexpr int kSteps = 60, kLast = 10;
constexpr std::int64_t kBatch = 8, kSeq = 32, kVocab = 48;

// Each token follows from the one before, but for one bit of chance.
Tensor text(int step) {
  const Tensor chance = uniform_(Tensor::empty({kBatch, kSeq + 1}, DType::f64),
                                 {29, static_cast<std::uint64_t>(step), 0}, 0, 2);
  Tensor ids = Tensor::empty({kBatch, kSeq + 1}, DType::i32);
  for (std::int64_t b = 0; b < kBatch; ++b) {
    auto token = static_cast<std::int32_t>((7 * step + 5 * b) % kVocab);
    for (std::int64_t t = 0; t <= kSeq; ++t) {
      ids.data<std::int32_t>()[b * (kSeq + 1) + t] = token;
      const auto bit = static_cast<std::int32_t>(chance.data<double>()[b * (kSeq + 1) + t]);
      token = (5 * token + 7 * bit + 3) % static_cast<std::int32_t>(kVocab);
    }
  }
  return ids;
}

enum class Planted { nothing, scale_off_by_2, stale_weight, stale_amax };

void each_linear(Gpt& model, const std::function<void(nn::Linear&)>& f) {
  nn::detail::for_each_module(model, [&](const std::string&, nn::Module& m) {
    if (auto* const linear = dynamic_cast<nn::Linear*>(&m); linear && linear->in_fp8) f(*linear);
  });
}

// The mean loss of the last steps.
double train(bool sparse, DType dtype, const std::optional<Recipe>& recipe,
             Planted error = Planted::nothing) {
  nn::GptConfig c{.arch = sparse ? nn::Arch::llama : nn::Arch::gpt2,
                  .layers = 2,
                  .heads = 2,
                  .dim = 64,
                  .ffn = 128,
                  .seq = kSeq,
                  .vocab = kVocab};
  if (sparse) {
    c.mtp.depths = 1;
    c.moe = {.experts = 4, .router = {.balance = {{nn::Balance::aux, 0.01}}}, .ffn = 64};
  }
  Gpt model(c);
  nn::init(model, 3);
  model.to(dtype);
  if (recipe) nn::prepare_fp8(model, *recipe);
  optim::AdamW opt(model.named_parameters(), {.lr = 5e-3, .beta2 = 0.95});
  std::optional<nn::Fp8Step> scales;
  if (recipe) scales.emplace(model, *recipe);
  double mean = 0;
  for (int step = 1; step <= kSteps; ++step) {
    const fp8::Autocast scope(recipe);
    const RandomScope random({.seed = 1, .step = static_cast<std::uint64_t>(step)});
    const Tensor ids = text(step), inputs = ids.narrow(1, 0, kSeq).clone(),
                 targets = ids.narrow(1, 1, kSeq).clone();
    if (error == Planted::scale_off_by_2) {
      const NoGradGuard off;  // fills the caches of weights
      (void)model.losses(inputs, targets);
      each_linear(model, [](nn::Linear& l) { l.fp8_state.weight.held()->inverse.mul_(2); });
    }
    if (error == Planted::stale_weight)
      each_linear(model, [](nn::Linear& l) { l.weight.storage()->version = 0; });
    Tape tape;
    const nn::GptLosses losses = model.losses(inputs, targets);
    const double count = static_cast<double>(kBatch * kSeq);
    losses.total().backward(Tensor::full({}, 1 / count));
    if (step > kSteps - kLast) mean += losses.main.loss.item() / count / kLast;
    opt.step(optim::measure_clip(model.named_parameters(), 1));
    opt.zero_grad();
    if (scales && (step == 1 || error != Planted::stale_amax)) scales->finish();
  }
  return mean;
}

// How far from f32, in parts of it.
double apart(double loss, double f32) { return std::fabs(loss - f32) / f32; }

// Measured: at most 0.004 of f32's loss for the dense model and 0.015 with experts, whose routing
// differs; planted errors are 0.0175 apart at least.
constexpr double kDenseBound = 0.01, kSparseBound = 0.03;

double f32_loss(bool sparse) {
  static const double losses[] = {train(false, DType::f32, std::nullopt),
                                  train(true, DType::f32, std::nullopt)};
  return losses[sparse];
}

}  // namespace

TEST_CASE("fp8 training: every recipe stays within the bound of f32") {
  const double f32 = f32_loss(false);
  CAPTURE(f32);
  CHECK(apart(train(false, DType::bf16, std::nullopt), f32) < kDenseBound);
  for (const Recipe& recipe :
       {Recipe{}, Recipe{.power_of_two = true}, Recipe{.scaling = Scaling::delayed},
        Recipe{.scaling = Scaling::block}}) {
    const double loss = train(false, DType::bf16, recipe);
    CAPTURE(loss);
    CAPTURE(static_cast<int>(recipe.scaling));
    CHECK(apart(loss, f32) < kDenseBound);
  }
}

TEST_CASE("fp8 training: experts and multi-token prediction") {
  for (const Recipe& recipe : {Recipe{}, Recipe{.scaling = Scaling::delayed}})
    CHECK(apart(train(true, DType::bf16, recipe), f32_loss(true)) < kSparseBound);
}

TEST_CASE("fp8 training: planted errors break the bound") {
  const Recipe current, delayed{.scaling = Scaling::delayed};
  for (const auto& [error, recipe] :
       {std::pair{Planted::scale_off_by_2, current}, std::pair{Planted::stale_weight, current},
        std::pair{Planted::stale_amax, delayed}}) {
    const double loss = train(false, DType::bf16, recipe, error);
    CAPTURE(static_cast<int>(error));
    CAPTURE(loss);
    CHECK(apart(loss, f32_loss(false)) > 1.5 * kDenseBound);
  }
}

}  // namespace weft::fp8_training_test
