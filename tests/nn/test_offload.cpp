// Saved tensors of blocks that wait in a file: the same bits, fewer live bytes.
#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "weft/autograd/offload.h"
#include "weft/core/allocator.h"
#include "weft/nn/gpt.h"
#include "weft/tests/count_new.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace weft::offload_test {
namespace {

using nn::Arch;
using nn::Gpt;
using nn::GptConfig;
using nn::Recompute;

constexpr std::int64_t kBatch = 3;

GptConfig config(Arch arch, Recompute recompute = Recompute::none) {
  return {.arch = arch,
          .layers = 4,
          .heads = 4,
          .dim = 32,
          .seq = 24,
          .vocab = 40,
          .dropout = 0.1,
          .recompute = recompute};
}

struct Step {
  TensorList gradients;
  std::int64_t kept = 0, peak = 0, left = 0;
};

Step step_of(const GptConfig& c, double fraction, Device device = kCpu) {
  const test::TempFolder folder;
  const nn::DeviceScope place(device, DType::f32);
  Gpt model(c);
  if (!device.is_meta()) nn::init(model, 3);
  const Tensor ids = device.is_meta() ? Tensor::empty({kBatch, c.seq}, DType::i32, device)
                                      : test::random({kBatch, c.seq}, 4, DType::i32);
  std::optional<Offload> offload;
  if (fraction > 0)
    offload.emplace(
        OffloadOptions{.folder = folder.path(), .fraction = fraction, .least_bytes = 1000}, device);
  Step out;
  const std::int64_t before = memory_stats(device).live_bytes;
  {
    std::optional<Offload::Use> use;
    if (offload) use.emplace(*offload);
    const RandomScope random({.seed = 1, .step = 7});
    reset_peak(device);
    Tape tape;
    const Tensor loss = model.losses(ids, ids).total();
    out.kept = memory_stats(device).live_bytes - before;
    loss.backward();
    out.peak = memory_stats(device).peak_bytes - before;
    if (offload) CHECK(offload->waiting_bytes() == 0);
  }
  out.left = memory_stats(device).live_bytes - before;
  for (const Tensor& p : model.parameters()) out.gradients.push_back(p.grad());
  return out;
}

}  // namespace

TEST_CASE("offload: gradients do not change, and the meta device knows the peak") {
  for (const Arch arch : {Arch::gpt2, Arch::llama})
    for (const Recompute r : {Recompute::none, Recompute::selective, Recompute::full}) {
      const GptConfig c = config(arch, r);
      const Step none = step_of(c, 0);
      for (const double fraction : {0.5, 1.0}) {
        CAPTURE(std::string(word_of(nn::kRecomputeWords, r)));
        CAPTURE(fraction);
        const Step got = step_of(c, fraction), planned = step_of(c, fraction, kMeta);
        for (int i = 0; i < none.gradients.size(); ++i)
          CHECK(test::different_bits(got.gradients[i], none.gradients[i]) == "");
        CHECK(got.left == none.left);
        CHECK(got.kept < none.kept);
        CHECK(got.peak <= none.peak);
        if (r == Recompute::none) CHECK(got.peak < none.peak);
        CHECK(planned.kept == got.kept);
        CHECK(planned.peak == got.peak);
      }
    }
}

TEST_CASE("offload: what an op keeps on the host stays there") {
  const nn::DeviceScope place(kMeta, DType::f32);
  GptConfig c = config(Arch::llama);
  c.moe = {.experts = 4, .ffn = 8};
  Gpt model(c);
  const Tensor ids = Tensor::empty({kBatch, c.seq}, DType::i32, kMeta);
  Offload offload({.least_bytes = 0}, kMeta);
  const Offload::Use use(offload);
  Tape tape;
  model.losses(ids, ids).total().backward();
  CHECK(offload.moved_bytes() > 0);
  CHECK(offload.waiting_bytes() == 0);
}

// Per block: the outputs of both norms, the stream before each, 3 C of q, k and v, attention's
// output, the MLP's two hidden layers of 4 C. The stream before the first block is the embedding.
TEST_CASE("offload: half of the blocks keep half of the bytes") {
  const GptConfig c = config(Arch::gpt2);
  const std::int64_t row = size_class_bytes(kBatch * c.seq * c.dim * 4),
                     qkv = size_class_bytes(kBatch * c.seq * 3 * c.dim * 4),
                     hidden = size_class_bytes(kBatch * c.seq * c.ffn_dim() * 4),
                     lse = size_class_bytes(kBatch * c.heads * c.seq * 4);
  const std::int64_t block = 5 * row + qkv + 2 * hidden + lse;
  const std::int64_t none = step_of(c, 0).kept;
  CHECK(none - step_of(c, 0.5).kept == 2 * block);
  CHECK(none - step_of(c, 0.25).kept == block);
  // Of the last block, the head still reads the stream.
  CHECK(none - step_of(c, 1).kept == 4 * block - row);
}

TEST_CASE("offload: a tensor that the caller holds stays, and a warm step allocates nothing") {
  const test::TempFolder folder;
  const GptConfig c = config(Arch::gpt2);
  Gpt model(c);
  nn::init(model, 3);
  const Tensor ids = test::random({kBatch, c.seq}, 4, DType::i32);
  Offload offload({.folder = folder.path(), .least_bytes = 1000}, kCpu);
  const Offload::Use use(offload);
  const std::vector<Tensor> parameters = model.parameters();
  const auto step = [&] {
    const RandomScope random({.seed = 1, .step = 7});
    Tape tape;
    model.losses(ids, ids).total().backward();
    for (const Tensor& p : parameters) p.set_grad({});
  };
  for (int i = 0; i < 3; ++i) step();
  const std::int64_t reserved = offload.reserved_bytes();
  const long news = test::news;
  step();
  CHECK(test::news == news);
  CHECK(offload.reserved_bytes() == reserved);

  const Tensor x = Tensor(test::random({kBatch, c.seq, c.dim}, 6, DType::f32)).set_requires_grad();
  {
    const RandomScope random({.seed = 1, .step = 7});
    Tape tape;
    const nn::Stream y = nn::run_blocks(model.blocks, {x, {}, {}}, {});
    CHECK_FALSE(x.storage()->released);
    CHECK_FALSE(y.residual.storage()->released);
    CHECK(offload.waiting_bytes() > 0);
  }
  CHECK(offload.waiting_bytes() == 0);  // the tape ended without a backward
}

}  // namespace weft::offload_test
