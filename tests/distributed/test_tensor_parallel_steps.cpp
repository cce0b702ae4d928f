#include <doctest/doctest.h>

#include "weft/optim/adamw.h"
#include "weft/optim/sgd.h"
#include "weft/tests/model_layouts.h"

namespace weft::distributed::tensor_parallel_steps_test {
namespace {

using nn::Arch;
using nn::GptConfig;

constexpr int kSteps = 20;

GptConfig model_config(Arch arch) {
  GptConfig c{.arch = arch, .layers = 2, .heads = 4, .dim = 16, .ffn = 24, .seq = 8, .vocab = 37};
  c.dropout = 0.1;
  if (arch == Arch::llama) {
    c.kv_heads = 2;
    c.mtp = {.depths = 1, .weight = 0.3};
  }
  return c;
}

test::Batch batch_of(int step) {
  const Tensor text = Tensor(uniform_(Tensor::empty({4, 9}, DType::f64),
                                      {static_cast<std::uint64_t>(step), 9, 0}, 0, 37))
                          .to(DType::i32);
  return {text.narrow(1, 0, 8).contiguous(), text.narrow(1, 1, 8).contiguous()};
}

/// Losses by step. The gradients of the parameters in `shares` are summed over the ranks first.
std::vector<double> train(nn::Gpt& model, optim::Optimizer& optimizer,
                          const std::vector<Tensor>& shares, ProcessGroup* tp) {
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const RandomScope random({.seed = 5, .step = static_cast<std::uint64_t>(step)});
    const test::Batch batch = batch_of(step % 2);
    {
      Tape tape;
      const nn::GptLosses l = model.losses(batch.ids, batch.targets);
      const Tensor loss = mul(l.total(), 1.0 / l.main.count.item());
      loss.backward();
      losses.push_back(loss.item());
    }
    for (const Tensor& p : shares) tp->all_reduce(p.grad()).wait();
    static_cast<void>(optimizer.step());
    optimizer.zero_grad();
  }
  return losses;
}

struct Run {
  std::vector<double> losses;
  std::map<std::string, Tensor> weights;
};

template <class MakeOptimizer>
Run one_rank(const GptConfig& c, const MakeOptimizer& make) {
  nn::Gpt model(c);
  nn::init(model, 1);
  const auto optimizer = make(model.named_parameters());
  Run out{train(model, *optimizer, {}, nullptr), {}};
  for (const NamedTensor& p : model.named_parameters()) out.weights[p.name] = p.tensor.detach();
  return out;
}

template <class MakeOptimizer>
Run on_ranks(const GptConfig& c, const MakeOptimizer& make, World& w, bool sequence) {
  const nn::DeviceScope on_meta(kMeta);
  nn::Gpt model(c);
  const Layout layout = parallelize(model, w.all(), gpt_plan(c, {.sequence = sequence}));
  nn::materialise(model, kCpu, 1, shard_specs(layout));
  std::vector<Tensor> shares;
  for (const NamedTensor& p : model.named_parameters())
    if (layout.at(p.name).tp_partial) shares.push_back(p.tensor);
  const auto optimizer = make(model.named_parameters());
  Run out{train(model, *optimizer, shares, &w.all()), {}};
  for (const NamedTensor& p : model.named_parameters()) {
    ParameterLayout l = layout.at(p.name);
    l.tp_partial = false;  // a weight is not a partial sum like its gradient
    out.weights[p.name] = test::whole_of(p.tensor.detach(), l, w.all());
  }
  return out;
}

std::string losses_apart(const Run& a, const Run& b, double tol) {
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    if (!(std::abs(a.losses[i] - b.losses[i]) <= tol * b.losses[i]))
      return message("step {}: {}, not {}", i, a.losses[i], b.losses[i]);
  return "";
}

}  // namespace

TEST_CASE("tensor_parallel: losses of 20 AdamW steps and weights of 20 SGD steps equal one rank") {
  const auto adam = [](const NamedTensors& p) {
    return std::make_unique<optim::AdamW>(p, optim::AdamWOptions{.lr = 3e-3});
  };
  const auto sgd = [](const NamedTensors& p) {
    return std::make_unique<optim::Sgd>(p, optim::SgdOptions{.lr = 0.1, .momentum = 0.5});
  };
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    const GptConfig c = model_config(arch);
    const Run by_adam = one_rank(c, adam), by_sgd = one_rank(c, sgd);
    CHECK(by_adam.losses.back() < by_adam.losses.front());
    for (const bool sequence : {false, true})
      test::distributed_test({2, 4}, [&](World& w) {
        CAPTURE(w.size());
        CAPTURE(sequence);
        CHECK(losses_apart(on_ranks(c, adam, w, sequence), by_adam, 1e-4) == "");
        const Run got = on_ranks(c, sgd, w, sequence);
        CHECK(losses_apart(got, by_sgd, 1e-5) == "");
        double off = 0, size = 0;
        for (const auto& [name, want] : by_sgd.weights) {
          const Tensor exact = want.to(DType::f64), d = sub(got.weights.at(name), exact);
          off += sum(mul(d, d)).item();
          size += sum(mul(exact, exact)).item();
        }
        CHECK(std::sqrt(off / size) < 1e-5);
      });
  }
}

}  // namespace weft::distributed::tensor_parallel_steps_test
