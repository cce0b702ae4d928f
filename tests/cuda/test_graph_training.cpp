// A captured and replayed training step gives the bits of an eager step.
#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/cuda_graph.h"
#include "weft/core/random.h"
#include "weft/core/staging.h"
#include "weft/nn/gpt.h"
#include "weft/optim/adamw.h"
#include "weft/optim/sgd.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::graph_training_test {
namespace {

using cuda::Graph;
using cuda::Readback;
using test::different_bits;
using test::kGpu;
using test::random;

constexpr std::uint64_t kSteps = 9, kWarm = 2;
constexpr std::int64_t kRows = 4, kTokens = 8, kVocab = 11;

using Maker = std::function<std::unique_ptr<optim::Optimizer>(NamedTensors)>;

// A GPT that trains with dropout, two micro-batches per step and a changing learning rate, either
// eagerly or as a graph from step kWarm + 1 on.
struct Training {
  Training(DType dtype, nn::Arch arch, nn::Recompute recompute, const Maker& make)
      : model({.arch = arch,
               .layers = 1,
               .heads = 2,
               .dim = 16,
               .seq = kTokens,
               .vocab = kVocab,
               .dropout = 0.2,
               .recompute = recompute}) {
    nn::init(model, 5);
    model.to(dtype);
    model.to(kGpu);
    if (is_half(dtype))
      for (Tensor& p : model.parameters())
        p.set_main_grad(Tensor::zeros(p.shape(), DType::f32, kGpu));
    optimizer = make(model.named_parameters());
  }

  void update(std::uint64_t step) {
    loss = Tensor();
    for (std::int64_t first = 0; first < kRows; first += kRows / 2) {
      const RandomScope scope(
          {.seed = 3, .step = step, .first_global_row = static_cast<std::uint64_t>(first)});
      Tape tape;
      const Tensor part = model.loss
                              .sum(model.hidden(ids.narrow(0, first, kRows / 2)), model.head,
                                   ids.narrow(0, first, kRows / 2))
                              .loss;
      part.backward(Tensor::full(part.shape(), 1.0 / (kRows * kTokens), part.dtype(), kGpu));
      if (loss.defined())
        loss.add_(part.detach());
      else
        loss = part.detach();
    }
    const optim::GradClip clip = optim::measure_clip(optimizer->parameters(), 0.5);
    norm = clip.norm;
    optimizer->step(clip);
    optimizer->zero_grad();
  }

  void step(std::uint64_t n, bool as_graph) {
    ids.copy_(random({kRows, kTokens}, 100 + n, DType::i32));
    optimizer->set_lr(1e-2 / static_cast<double>(n));
    if (as_graph && n > kWarm) {
      if (!graph.captured()) graph.capture([&] { update(n); });
      const RandomScope scope({.seed = 3, .step = n});
      graph.replay();
    } else {
      update(n);
    }
    read.emplace_back(loss);
    read.emplace_back(norm);
  }

  nn::Gpt model;
  std::unique_ptr<optim::Optimizer> optimizer;
  Tensor ids = Tensor::zeros({kRows, kTokens}, DType::i32, kGpu);
  Tensor loss, norm;
  Graph graph;
  std::vector<Readback> read;
};

std::string compare(DType dtype, nn::Arch arch, nn::Recompute recompute, const Maker& make) {
  Training eager(dtype, arch, recompute, make), graphed(dtype, arch, recompute, make);
  for (std::uint64_t n = 1; n <= kSteps; ++n) {
    eager.step(n, false);
    graphed.step(n, true);
  }
  for (std::size_t i = 0; i < eager.read.size(); ++i)
    if (eager.read[i].value() != graphed.read[i].value())
      return message("number {}: {} and {}", i, eager.read[i].value(), graphed.read[i].value());
  if (eager.read[0].value() == eager.read[2].value()) return "nothing is trained";
  const auto a = eager.model.named_parameters(), b = graphed.model.named_parameters();
  for (std::size_t i = 0; i < a.size(); ++i)
    if (const auto text = different_bits(a[i].tensor.to(kCpu), b[i].tensor.to(kCpu)); text != "")
      return a[i].name + ": " + text;
  const StateDict s = eager.optimizer->state_dict(), t = graphed.optimizer->state_dict();
  for (const auto& [name, tensor] : s)
    if (const auto text = different_bits(tensor.to(kCpu), t.at(name).to(kCpu)); text != "")
      return name + ": " + text;
  return "";
}

Maker adamw(const optim::AdamWOptions& options) {
  return [=](NamedTensors p) { return std::make_unique<optim::AdamW>(std::move(p), options); };
}

}  // namespace

TEST_CASE("graph: a replayed training step gives the bits of an eager step") {
  const std::vector<optim::GroupRule> slower = {{.pattern = "head|embed", .lr_scale = 0.3}};
  const auto adam = adamw({.groups = slower});
  const auto compact = adamw({.m_dtype = DType::f16, .v_dtype = DType::f16});
  const Maker sgd = [&](NamedTensors p) {
    return std::make_unique<optim::Sgd>(std::move(p),
                                        optim::SgdOptions{.momentum = 0.9, .groups = slower});
  };
  using nn::Arch, nn::Recompute;
  CHECK(compare(DType::f32, Arch::gpt2, Recompute::none, adam) == "");
  CHECK(compare(DType::f64, Arch::gpt2, Recompute::none, adam) == "");
  CHECK(compare(DType::bf16, Arch::llama, Recompute::selective, adam) == "");
  CHECK(compare(DType::f32, Arch::llama, Recompute::full, compact) == "");
  CHECK(compare(DType::bf16, Arch::gpt2, Recompute::none, sgd) == "");
  CHECK(compare(DType::f16, Arch::llama, Recompute::none, adam) == "");
}

TEST_CASE("graph: replays neither wait nor allocate") {
  Training t(DType::f32, nn::Arch::gpt2, nn::Recompute::none, adamw({}));
  for (std::uint64_t n = 1; n <= 6; ++n) t.step(n, true);
  t.read.clear();
  const MemoryStats before = memory_stats(kGpu);
  const std::int64_t syncs = cuda::host_syncs(), pinned = cuda::detail::staging_bytes();
  for (std::uint64_t n = 7; n <= 12; ++n) {
    const RandomScope scope({.seed = 3, .step = n});
    t.optimizer->set_lr(1e-3);
    t.graph.replay();
  }
  const MemoryStats after = memory_stats(kGpu);
  CHECK(cuda::host_syncs() == syncs);
  CHECK(after.hits + after.misses == before.hits + before.misses);
  CHECK(after.system_allocs == before.system_allocs);
  CHECK(t.optimizer->steps() == 12);
  cuda::synchronize();
  CHECK(cuda::detail::staging_bytes() <= pinned + (6 << 16));  // six in flight at once
}

TEST_CASE("graph: external changes of weights between replays are used") {
  const auto make = adamw({});
  Training eager(DType::bf16, nn::Arch::gpt2, nn::Recompute::none, make);
  Training graphed(DType::bf16, nn::Arch::gpt2, nn::Recompute::none, make);
  for (std::uint64_t n = 1; n <= 6; ++n) {
    if (n == 5)
      for (Training* t : {&eager, &graphed}) t->model.head.weight.fill_(0.25);
    eager.step(n, false);
    graphed.step(n, true);
  }
  CHECK(different_bits(eager.model.head.weight.to(kCpu), graphed.model.head.weight.to(kCpu)) == "");
  CHECK(eager.loss.item() == graphed.loss.item());
}

}  // namespace weft::graph_training_test
