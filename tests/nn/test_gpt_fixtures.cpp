// Compares two tiny models with PyTorch's logits, loss and gradients for the same weights.
// tests/fixtures/make_gpt_fixtures.py wrote the files.
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "weft/autograd/tape.h"
#include "weft/io/safetensors.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::gpt_fixtures_test {

namespace {

const nn::GptConfig kGpt2{.layers = 2, .heads = 4, .dim = 32, .seq = 16, .vocab = 61};
const nn::GptConfig kLlama{.arch = nn::Arch::llama,
                           .layers = 2,
                           .heads = 4,
                           .kv_heads = 2,
                           .dim = 32,
                           .ffn = 96,
                           .seq = 16,
                           .vocab = 61};

// The largest error relative to the tensor's largest value.
double error(const Tensor& got, const Tensor& want) {
  REQUIRE(got.shape() == want.shape());
  std::vector<double> a(static_cast<std::size_t>(got.numel())), b(a.size());
  got.copy_to(a);
  want.copy_to(b);
  double worst = 0, scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(std::isfinite(a[i]));
    worst = std::max(worst, std::abs(a[i] - b[i]));
    scale = std::max(scale, std::abs(b[i]));
  }
  REQUIRE(scale > 0);
  return worst / scale;
}

void check_against(const std::string& name, nn::GptConfig config, DType dtype, double tolerance,
                   nn::Recompute recompute = nn::Recompute::none) {
  const auto file = io::SafetensorsFile::open(std::string(WEFT_FIXTURES) + '/' + name);
  config.recompute = recompute;
  nn::Gpt model(config);
  model.to(dtype);
  StateDict weights;
  for (const auto& [key, tensor] : model.state_dict())
    weights.emplace(key, file.tensor("weight." + key));
  model.load_state_dict(weights);

  Tape tape;
  const Tensor logits = model(file.tensor("ids"));
  const Tensor loss = model.loss(logits, file.tensor("targets"));
  CHECK(error(logits, file.tensor("logits")) < tolerance);
  CHECK(error(loss.view({1}), file.tensor("loss")) < tolerance);
  loss.backward();
  std::size_t gradients = 0;
  for (const NamedTensor& p : model.named_parameters()) {
    CAPTURE(p.name);
    REQUIRE(p.tensor.grad().defined());
    CHECK(error(p.tensor.grad(), file.tensor("grad." + p.name)) < tolerance);
    ++gradients;
  }
  std::size_t stored = 0;
  for (const std::string& key : file.names()) stored += key.starts_with("grad.");
  CHECK(gradients == stored);
}

}  // namespace

TEST_CASE("gpt2: the model agrees with PyTorch in f32") {
  check_against("gpt2.safetensors", kGpt2, DType::f32, 1e-5);
}
TEST_CASE("gpt2: the model agrees with PyTorch in f64") {
  check_against("gpt2.safetensors", kGpt2, DType::f64, 1e-11);
}
TEST_CASE("llama: the model agrees with PyTorch in f32") {
  check_against("llama.safetensors", kLlama, DType::f32, 1e-5);
}
TEST_CASE("llama: the model agrees with PyTorch in f64") {
  check_against("llama.safetensors", kLlama, DType::f64, 1e-11);
}
TEST_CASE("gpt: recomputing models agree with PyTorch") {
  for (const nn::Recompute r : {nn::Recompute::selective, nn::Recompute::full}) {
    check_against("gpt2.safetensors", kGpt2, DType::f64, 1e-11, r);
    check_against("llama.safetensors", kLlama, DType::f64, 1e-11, r);
  }
}

}  // namespace weft::gpt_fixtures_test
