// Norms over a model with experts: every parameter of every kind counts once.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/nn/gpt.h"
#include "weft/optim/adamw.h"
#include "weft/optim/clip.h"
#include "weft/tests/support.h"

namespace weft::gpt_norms_test {
namespace {

using nn::Gpt;
using nn::GptConfig;
using test::mismatch;

// Experts in one of two blocks and in the MTP depth, a shared expert with a gate, a router with a
// bias, and, if tied, one table for embedding, head and depth.
GptConfig small(bool tied) {
  GptConfig c{
      .arch = nn::Arch::llama, .layers = 2, .heads = 2, .dim = 8, .ffn = 12, .seq = 8, .vocab = 11};
  c.tie = tied;
  c.mtp = {.depths = 1, .weight = 0.5};
  c.moe = {.experts = 4, .ffn = 6, .shared_ffn = 5, .shared_gate = true};
  c.moe.router = {.bias = true, .balance = {{nn::Balance::aux, 0.1}}, .z_loss = 0.1};
  c.moe_layers = {0, 1};
  return c;
}

// Expert 2 gets no token.
Gpt make(bool tied, DType dtype = DType::f64) {
  const nn::DeviceScope scope(kCpu, dtype);
  Gpt model(small(tied));
  nn::init(model, 3);
  for (const NamedTensor& p : model.named_parameters()) {
    if (p.tensor.ndim() >= 2)
      normal_(p.tensor, {5, stream_of(p.name == "head.weight" ? "embed.weight" : p.name), 0}, 0,
              0.3);
    if (p.name.ends_with("router.bias")) p.tensor.select(0, 2).fill_(-1e3);
  }
  return model;
}

void run_backward(Gpt& model) {
  const Tensor ids = Tensor::of({1, 4, 2, 9, 0, 3, 7, 7, 5, 5, 10, 8}, {2, 6}, DType::i32);
  const Tensor targets = Tensor::of({4, 2, 9, 0, 3, 1, 7, 5, 5, 10, 8, -100}, {2, 6}, DType::i32);
  model.zero_grad();
  Tape tape;
  model.losses(ids, targets).total().backward();
}

// The root of the sum of all squares, accumulated in long double.
double flat_norm(const std::map<std::string, std::vector<double>>& all) {
  long double sum = 0;
  for (const auto& [name, values] : all)
    for (const double v : values) sum += static_cast<long double>(v) * v;
  return static_cast<double>(std::sqrt(sum));
}

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> out(static_cast<std::size_t>(t.numel()));
  t.copy_to(out);
  return out;
}

}  // namespace

TEST_CASE("norms: gradients of experts, routers, depths and a tied table count once each") {
  // The reference: a model whose head has a separate table. The tied gradient is the sum of the
  // two.
  Gpt untied = make(false);
  run_backward(untied);
  std::map<std::string, std::vector<double>> want;
  std::int64_t count = 0;
  for (const NamedTensor& p : untied.named_parameters()) {
    REQUIRE(p.tensor.grad().defined());
    const std::string name = p.name == "head.weight" ? "embed.weight" : p.name;
    const std::vector<double> g = values_of(p.tensor.grad());
    std::vector<double>& sum = want[name];
    if (sum.empty()) count += p.tensor.numel();
    sum.resize(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) sum[i] += g[i];
  }
  CHECK(count == small(true).parameter_count());

  Gpt tied = make(true);
  run_backward(tied);
  const NamedTensors parameters = tied.named_parameters();
  REQUIRE(parameters.size() == want.size());
  const double norm = flat_norm(want);
  CHECK(optim::measure_clip(parameters, 1).norm.item() ==
        doctest::Approx(norm).epsilon(1e-12).scale(0));
  // Clipping to half the norm halves every gradient; an idle expert's gradient stays 0.
  CHECK(optim::clip_grad_norm(parameters, norm / 2).item() ==
        doctest::Approx(norm).epsilon(1e-12).scale(0));
  for (const NamedTensor& p : parameters) {
    CAPTURE(p.name);
    std::vector<double> half = want.at(p.name);
    for (double& v : half) v *= norm / 2 / (norm + 1e-6);
    CHECK(mismatch(p.tensor.grad(), Tensor::from<double>(half, p.tensor.shape()), 1e-12) == "");
    if (p.name.find("experts.") != std::string::npos)
      CHECK(p.tensor.grad().select(0, 2).abs().max().item() == 0);
  }
  const Tensor counts = tied.blocks[1].as<nn::MoE>()->router.tokens_per_expert;
  CHECK(counts.data<std::int64_t>()[2] == 0);

  // Each kind of parameter contributes visibly: leaving one out changes the norm.
  for (const std::string kind : {"experts.gate_up", "experts.down", "router.weight", "shared",
                                 "embed", "mtp.0.eh_proj", "attn.qkv", "mtp.0.block.moe.experts"}) {
    CAPTURE(kind);
    auto without = want;
    std::erase_if(without, [&](const auto& e) { return e.first.find(kind) != std::string::npos; });
    REQUIRE(without.size() < want.size());
    CHECK(flat_norm(without) < norm * (1 - 1e-9));
  }
}

TEST_CASE("norms: O6 parameters of dense layers and experts count once each") {
  Gpt model = make(true);
  std::map<std::string, std::vector<double>> all;
  for (const auto& [name, tensor] : model.state_dict())
    if (!name.ends_with("expert_bias")) all[name] = values_of(tensor);
  REQUIRE(all.count("embed.weight") + all.count("head.weight") == 1);
  const optim::AdamW opt(model.named_parameters(), {});
  CHECK(opt.parameter_norm().item() == doctest::Approx(flat_norm(all)).epsilon(1e-12).scale(0));
}

TEST_CASE("norms: a bf16 model's parameter norm uses the master weights") {
  Gpt model = make(true, DType::bf16);
  optim::AdamW opt(model.named_parameters(), {.lr = 1e-4});
  const auto flat = [&](bool copies) {
    std::map<std::string, std::vector<double>> all;
    const StateDict state = opt.state_dict();
    for (const NamedTensor& p : model.named_parameters())
      all[p.name] = values_of(copies ? state.at(p.name + ".master") : p.tensor);
    return doctest::Approx(flat_norm(all)).epsilon(1e-12).scale(0);
  };
  CHECK(opt.parameter_norm().item() == flat(false));
  for (int i = 0; i < 3; ++i) {
    run_backward(model);
    opt.step();
  }
  CHECK(opt.parameter_norm().item() == flat(true));
  CHECK(opt.parameter_norm().item() != flat(false));  // most updates were lost in rounding
  // Externally changed parameters take precedence over the master weights.
  for (const NamedTensor& p : model.named_parameters()) p.tensor.mul_(2);
  CHECK(opt.parameter_norm().item() == flat(false));
  CHECK(!optim::AdamW({}, {.settings = std::vector<optim::ParamSettings>()})
             .parameter_norm()
             .defined());
}

}  // namespace weft::gpt_norms_test
