// The number of kernels that a training step launches; each costs the host and the GPU some
// microseconds.
#include <doctest/doctest.h>

#include "weft/autograd/tape.h"
#include "weft/cuda/emu/engine.h"
#include "weft/nn/gpt.h"
#include "weft/optim/adamw.h"
#include "weft/optim/clip.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::launches_test {
namespace {

using test::kGpu;

struct Launches {
  std::uint64_t zeroing, step;
};

// Of the second training step in bf16, products not counted.
Launches of_step(std::int64_t layers) {
  nn::Gpt model({.layers = layers, .heads = 1, .dim = 64, .seq = 16, .vocab = 32});
  nn::init(model, 1);
  model.to(DType::bf16);
  model.to(kGpu);
  for (Tensor& p : model.parameters()) p.set_main_grad(Tensor::zeros(p.shape(), DType::f32, kGpu));
  optim::AdamW optimizer(model.named_parameters(), {.lr = 1e-3});
  const Tensor ids = test::random({1, 16}, 1, DType::i32).to(kGpu);
  Launches last{};
  for (int step = 0; step < 2; ++step) {
    const std::uint64_t before = emu::stats.launches;
    {
      const Tape tape;
      model.loss(model.hidden(ids), model.head, ids).backward();
    }
    optimizer.step(optim::measure_clip(model.named_parameters(), 1));
    cuda::synchronize();
    const std::uint64_t updated = emu::stats.launches;
    optimizer.zero_grad();
    cuda::synchronize();
    last = {emu::stats.launches - updated, updated - before};
  }
  return last;
}

}  // namespace

TEST_CASE("launches: no gradient sum is set to 0, and a layer adds few to a step") {
  const Launches two = of_step(2), four = of_step(4);
  CHECK(two.zeroing == 0);
  CHECK(four.zeroing == 0);
  // Two norms in three kernels each, and attention in four.
  CHECK((four.step - two.step) / 2 == 10);
}

}  // namespace weft::launches_test
