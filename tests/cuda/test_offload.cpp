// Saved tensors of blocks that wait in pinned memory of the host, and recomputed parts.
#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "weft/autograd/offload.h"
#include "weft/core/allocator.h"
#include "weft/nn/gpt.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::gpu_offload_test {
namespace {

using nn::Recompute;
using test::kGpu;

constexpr Device kPlan{Device::Kind::meta_cuda, 0};

struct Step {
  TensorList gradients;
  std::int64_t kept = 0, peak = 0;
};

Step step_of(nn::Arch arch, Recompute recompute, double fraction, Device device) {
  const nn::GptConfig c = {.arch = arch,
                           .layers = 3,
                           .heads = 2,
                           .dim = 16,
                           .seq = 8,
                           .vocab = 11,
                           .dropout = 0.2,
                           .recompute = recompute};
  const nn::DeviceScope place(device, DType::f32);
  nn::Gpt model(c);
  if (!device.is_meta()) nn::init(model, 3);
  Tensor ids = Tensor::empty({2, c.seq}, DType::i32, device);
  if (!device.is_meta()) ids = test::random({2, c.seq}, 4, DType::i32).to(device);
  std::optional<Offload> offload;
  if (fraction > 0)
    offload.emplace(OffloadOptions{.fraction = fraction, .least_bytes = 512}, device);
  Step out;
  for (int i = 0; i < 2; ++i) {  // the second step already has what is made on first use
    std::optional<Offload::Use> use;
    if (offload) use.emplace(*offload);
    const RandomScope random({.seed = 1, .step = 7});
    model.zero_grad();
    reset_peak(device);
    const std::int64_t before = memory_stats(device).live_bytes;
    Tape tape;
    const Tensor loss = model.losses(ids, ids).total();
    out.kept = memory_stats(device).live_bytes - before;
    loss.backward();
    out.peak = memory_stats(device).peak_bytes - before;
  }
  for (const Tensor& p : model.parameters()) out.gradients.push_back(p.grad());
  return out;
}

}  // namespace

TEST_CASE("gpu offload: gradients do not change, and meta:cuda knows the peak") {
  for (const nn::Arch arch : {nn::Arch::gpt2, nn::Arch::llama})
    for (const Recompute r : {Recompute::none, Recompute::norms | Recompute::attention}) {
      const Step none = step_of(arch, Recompute::none, 0, kGpu);
      for (const double fraction : {0.0, 0.7, 1.0}) {
        CAPTURE(std::string(word_of(nn::kRecomputeWords, r)));
        CAPTURE(fraction);
        const Step got = step_of(arch, r, fraction, kGpu),
                   planned = step_of(arch, r, fraction, kPlan);
        for (int i = 0; i < none.gradients.size(); ++i)
          CHECK(test::different_bits(got.gradients[i].to(kCpu), none.gradients[i].to(kCpu)) == "");
        if (r != Recompute::none || fraction > 0) CHECK(got.kept < none.kept);
        CHECK(planned.kept == got.kept);
        CHECK(planned.peak == got.peak);
      }
    }
}

}  // namespace weft::gpu_offload_test
