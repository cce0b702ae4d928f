// The sums of gradients of whole models: the first gradient of a step overwrites them, and those of
// bf16 parameters are not rounded on the way.
#include <doctest/doctest.h>

#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/nn/gpt.h"
#include "weft/optim/sgd.h"
#include "weft/tests/support.h"

namespace weft::main_grad_test {
namespace {

using nn::GptConfig;

constexpr std::int64_t kTokens = 12, kVocab = 40;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

GptConfig base(nn::Arch arch) {
  return {.arch = arch, .layers = 2, .heads = 2, .dim = 16, .seq = kTokens, .vocab = kVocab};
}

// Every kind of layer and loss: biases, tied and untied heads, experts, latent attention, delta
// nets, depths and recomputed blocks.
std::vector<GptConfig> configurations() {
  std::vector<GptConfig> all(5, base(nn::Arch::gpt2));
  all[1].tie = false;
  all[1].moe.experts = 3;
  all[1].moe.shared_ffn = 8;
  all[1].moe.router.bias = true;
  all[2] = base(nn::Arch::llama);
  all[2].attention = nn::AttentionKind::mla;
  all[2].mtp.depths = 1;
  all[3] = base(nn::Arch::llama);
  all[3].pattern = "da";
  all[3].qk_norm = true;
  all[4].recompute = nn::Recompute::full;
  return all;
}

nn::Gpt make(const GptConfig& config, DType dtype) {
  const nn::DeviceScope scope(kCpu, dtype);
  nn::Gpt model(config);
  nn::init(model, 3);
  const DType sum = dtype == DType::f64 ? DType::f64 : DType::f32;
  for (Tensor& p : model.parameters()) p.set_main_grad(Tensor::zeros(p.shape(), sum));
  return model;
}

void two_micro_batches(nn::Gpt& model) {
  for (std::uint64_t micro = 0; micro < 2; ++micro) {
    const Tensor ids = test::random({3, kTokens}, 5 + micro, DType::i32).abs();
    const Tape tape;
    const Tensor loss = model.losses(ids, ids).total();
    loss.backward(Tensor::full(loss.shape(), 1.0 / 70, loss.dtype()));
  }
}

// Of a step that adds to zeros, as long as there was a pass that set them.
std::vector<Tensor> added_to_zeros(const GptConfig& config, DType dtype) {
  nn::Gpt model = make(config, dtype);
  two_micro_batches(model);
  std::vector<Tensor> out;
  for (const Tensor& p : model.parameters()) out.push_back(p.main_grad());
  return out;
}

bool is_bf16(const Tensor& g) {
  return test::different_bits(g, g.to(DType::bf16).to(DType::f32)) == "";
}

}  // namespace

TEST_CASE("main_grad: the first gradient after zero_grad() overwrites, with the bits of a sum") {
  for (const GptConfig& config : configurations())
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      const std::vector<Tensor> want = added_to_zeros(config, dtype);
      nn::Gpt model = make(config, dtype);
      optim::Sgd optimizer(model.named_parameters(), {.lr = 1});
      for (int step = 0; step < 2; ++step) {
        for (const Tensor& p : model.parameters()) p.main_grad().fill_(kNaN);
        optimizer.zero_grad();
        two_micro_batches(model);
        const NamedTensors parameters = model.named_parameters();
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          CAPTURE(parameters[i].name);
          CHECK(parameters[i].tensor.main_grad_filled());
          CHECK(test::mismatch(parameters[i].tensor.main_grad(), want[i], 0) == "");
        }
      }
    }
}

TEST_CASE("main_grad: no gradient of a bf16 model is rounded to bf16") {
  for (const GptConfig& config : configurations()) {
    nn::Gpt model = make(config, DType::bf16);
    two_micro_batches(model);
    for (const NamedTensor& p : model.named_parameters()) {
      CAPTURE(p.name);
      CHECK(!is_bf16(p.tensor.main_grad()));
    }
  }
}

TEST_CASE("main_grad: what backward does not reach stays empty, whatever it holds") {
  Tensor used = Tensor::ones({3}).set_requires_grad(), unused = used.clone().set_requires_grad();
  for (const Tensor& p : {used, unused}) p.set_main_grad(Tensor::full({3}, kNaN));
  const NamedTensors both{{"used", used}, {"unused", unused}};
  optim::Sgd sgd(both, {.lr = 1});
  sgd.zero_grad();
  {
    const Tape tape;
    sum(used * 2.0).backward();
  }
  const optim::GradClip clip = optim::measure_clip(both, 1e9);
  CHECK(clip.norm.item() == doctest::Approx(std::sqrt(12.0)));
  sgd.step(clip);
  CHECK(test::different_bits(used, Tensor::full({3}, -1)) == "");
  CHECK(test::different_bits(unused, Tensor::ones({3})) == "");
}

TEST_CASE("main_grad: a pass that throws half way leaves a sum, and zero_grad() empties it") {
  const Tensor w = Tensor::ones({2, 2}).set_requires_grad();
  w.set_main_grad(Tensor::zeros({2, 2}));
  optim::Sgd sgd({{"w", w}}, {.lr = 1});
  const auto pass = [&](bool fails) {
    Tape tape;
    Tensor x = Tensor::ones({3, 2});
    const Tensor y = sum(w * 3.0) + sum(w.square());
    if (fails) tape.on_grad_ready([](const Tensor&) { throw Error("stop"); });
    y.backward();
  };
  sgd.zero_grad();
  CHECK(test::error_of([&] { pass(true); }) == "stop");
  sgd.zero_grad();
  pass(false);
  CHECK(test::different_bits(w.main_grad(), Tensor::full({2, 2}, 5)) == "");
}

}  // namespace weft::main_grad_test
