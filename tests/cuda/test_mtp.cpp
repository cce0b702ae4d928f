// A model with multi-token prediction on a GPU: its losses and gradients, and that no host waits.
#include <doctest/doctest.h>

#include "weft/nn/gpt.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::mtp_test {
namespace {

using test::kGpu;

nn::Gpt model_on(Device device, nn::Arch arch, const char* pattern = "") {
  nn::Gpt model({.arch = arch,
                 .layers = 1,
                 .heads = 2,
                 .dim = 16,
                 .seq = 8,
                 .vocab = 11,
                 .pattern = pattern,
                 .mtp = {.depths = 2, .weight = 0.5}});
  nn::init(model, 3);
  for (const NamedTensor& p : model.named_parameters())
    if (p.tensor.ndim() == 2) normal_(p.tensor, {3, stream_of(p.name), 0}, 0, 0.3);
  model.to(device);
  return model;
}

Tensor ids(const std::vector<std::int32_t>& values, const Shape& shape) {
  return Tensor::from<std::int32_t>(values, shape);
}

constexpr std::int32_t kBoundaries[] = {0, 5, 5, 6, 10};
constexpr std::uint8_t kLastIsPadding[] = {0, 0, 0, 1};

// Two rows, or one row with sequences of 5, 0, 1 and 4 tokens.
struct Batch {
  Tensor inputs, targets;
  nn::Packing packing;
  Batch on(Device device) const {
    nn::Packing there;
    if (packing) there = nn::Packing::of(kBoundaries, 8, device);
    if (packing.padding.defined()) there.padding = packing.padding.to(device);
    return {inputs.to(device), targets.to(device), there};
  }
};
const Batch kPlain = {ids({1, 5, 2, 9, 0, 3, 7, 7, 4, 10}, {2, 5}),
                      ids({5, 2, 9, 0, -100, 7, 7, 4, 10, 1}, {2, 5}),
                      {}};
const Batch kPacked = {ids({1, 5, 2, 9, 0, 3, 7, 7, 4, 10}, {1, 10}),
                       ids({5, 2, 9, 0, -100, -100, 7, 4, 10, -100}, {1, 10}),
                       nn::Packing::of(kBoundaries, 8)};
const Batch kPadded = {kPacked.inputs, kPacked.targets,
                       nn::Packing::of(kBoundaries, 8, kCpu, kLastIsPadding)};

// The total, each depth's loss, count and hits, and all gradients.
TensorList results(nn::Gpt& model, const Batch& batch) {
  model.zero_grad();
  Tape tape;
  const nn::GptLosses l = model.losses(batch.inputs, batch.targets, batch.packing);
  const Tensor total = l.total();
  total.backward();
  TensorList out = {total, l.main.loss};
  for (int d = 0; d < 2; ++d)
    for (const Tensor& t : {l.mtp[d], l.mtp_count[d], l.mtp_hits[d]}) out.push_back(t);
  for (const Tensor& p : model.parameters()) out.push_back(p.grad());
  return out;
}

}  // namespace

TEST_CASE("mtp: losses and gradients of plain and packed rows equal the CPU's") {
  for (const nn::Arch arch : {nn::Arch::gpt2, nn::Arch::llama}) {
    nn::Gpt on_cpu = model_on(kCpu, arch), on_gpu = model_on(kGpu, arch);
    for (const Batch& batch : {kPlain, kPacked, kPadded}) {
      const TensorList want = results(on_cpu, batch);
      const Batch there = batch.on(kGpu);
      test::for_each_order([&] {
        const TensorList got = results(on_gpu, there);
        REQUIRE(got.size() == want.size());
        for (int i = 0; i < want.size(); ++i) {
          CAPTURE(i);
          CHECK(test::mismatch(got[i].to(kCpu), want[i], test::tolerance(DType::f32)) == "");
        }
      });
    }
  }
}

TEST_CASE("mtp: the host never waits in a step with any layer") {
  for (const char* pattern : {"a", "d"}) {
    nn::Gpt model = model_on(kGpu, nn::Arch::llama, pattern);
    for (const Batch& batch : {kPlain, kPacked, kPadded}) {
      const Batch there = batch.on(kGpu);
      results(model, there);
      const std::int64_t before = cuda::host_syncs();
      results(model, there);
      CHECK(cuda::host_syncs() == before);
    }
  }
}

}  // namespace weft::mtp_test
