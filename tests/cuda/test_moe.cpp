// The MoE layer on a GPU, and a model that trains with it.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/core/cuda.h"
#include "weft/nn/gpt.h"
#include "weft/optim/adamw.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::moe_test {
namespace {

using test::disagreement;
using test::kGpu;
using test::random;

nn::MoE layer(const nn::MoeOptions& options, DType dtype, Device device) {
  const NoGradGuard off;
  nn::MoE moe(8, options);
  nn::init(moe, 3);
  for (const Tensor& p : moe.parameters()) p.mul_(20);
  moe.to(dtype);
  moe.to(device);
  return moe;
}

}  // namespace

TEST_CASE("MoE: equals the CPU's layer with all options") {
  const nn::MoeOptions layers[] = {
      {.experts = 4, .ffn = 6},
      {.experts = 4, .ffn = 6, .bias = true, .shared_ffn = 3, .shared_gate = true},
      {.experts = 4, .router = {.capacity_factor = 1}, .ffn = 6, .latent = 4}};
  for (const nn::MoeOptions& o : layers) {
    const auto op = [&](const TensorList& in) {
      return TensorList{layer(o, in[0].dtype(), in[0].device())(in[0]).y};
    };
    // In bf16 a rounded logit may choose another expert, so only f32 and f64.
    CHECK(disagreement(op, {random({9, 8}, 4)},
                       {.dtypes = {DType::f32, DType::f64}, .tolerance = 4}) == "");
  }
}

TEST_CASE("MoE: row counts on a GPU are rounded up and padding rows change nothing") {
  const nn::MoeOptions o{.experts = 2, .ffn = 6};
  const Tensor x = random({70, 8}, 2);
  const nn::MoE gpu = layer(o, DType::f64, kGpu), cpu = layer(o, DType::f64, kCpu);
  const Tensor there = x.to(kGpu);
  const nn::Dispatch d = gpu.dispatcher().dispatch_preprocess(there, gpu.router(there).routing, 0);
  for (std::int64_t e = 0; e < 2; ++e) CHECK(d.rows.rows.data<std::int64_t>()[e] % 4 == 0);
  CHECK(d.tokens.dim(0) > 140);  // 70 is not a multiple of 4
  CHECK(cpu.dispatcher().dispatch_preprocess(x, cpu.router(x).routing, 0).tokens.dim(0) == 140);
  CHECK(test::mismatch(gpu(there).y.to(kCpu), cpu(x).y, 1e-12) == "");
}

TEST_CASE("MoE: the host waits once per layer and never with a capacity") {
  for (const double capacity : {0.0, 1.0}) {
    nn::GptConfig c{
        .arch = nn::Arch::llama,
        .layers = 3,
        .heads = 2,
        .dim = 16,
        .seq = 8,
        .vocab = 13,
        .moe = {.experts = 4,
                .router = {.balance = {{nn::Balance::aux, 0.01}}, .capacity_factor = capacity},
                .ffn = 8}};
    nn::Gpt model(c);
    nn::init(model, 1);
    model.to(kGpu);
    const Tensor ids = random({2, 8}, 1, DType::i32).to(kGpu);
    for (int step = 0; step < 3; ++step) {
      const std::int64_t before = cuda::host_syncs();
      Tape tape;
      const nn::Trunk t = model.trunk(ids);
      add(model.loss(t.hidden, model.head, ids), t.aux).backward();
      model.zero_grad();
      CHECK(cuda::host_syncs() - before == (capacity > 0 ? 0 : 3));
    }
  }
}

TEST_CASE("MoE: a packed row with padding gives the CPU's losses and no host waits") {
  // Sequences of 5, 0, 2 and 6 tokens and 3 padding tokens.
  const std::int32_t bounds[] = {0, 5, 5, 7, 13, 16};
  const std::uint8_t is_padding[] = {0, 0, 0, 0, 1};
  nn::GptConfig c{.arch = nn::Arch::llama,
                  .layers = 2,
                  .heads = 2,
                  .dim = 16,
                  .seq = 8,
                  .vocab = 13,
                  .moe = {.experts = 4,
                          .router = {.balance = {{nn::Balance::sequence, 0.5}},
                                     .z_loss = 0.1,
                                     .capacity_factor = 1.5},
                          .ffn = 8}};
  const nn::DeviceScope f64(kCpu, DType::f64);
  nn::Gpt model(c);
  nn::init(model, 1);
  const Tensor ids = random({1, 16}, 1, DType::i32);
  const auto results = [&](Device device) {
    model.zero_grad();
    const nn::Packing packing = nn::Packing::of(bounds, 8, device, is_padding);
    const Tensor here = ids.to(device);
    const std::int64_t before = cuda::host_syncs();
    Tape tape;
    const nn::GptLosses l = model.losses(here, here, packing);
    l.total().backward();
    CHECK(cuda::host_syncs() == before);
    TensorList out{l.main.loss.detach(), l.main.count, l.aux.detach()};
    for (const Tensor& p : model.parameters()) out.push_back(p.grad());
    return out;
  };
  const TensorList want = results(kCpu);
  CHECK(want[1].item_int() == 13);
  model.to(kGpu);
  test::for_each_order([&] {
    const TensorList got = results(kGpu);
    for (int i = 0; i < got.size(); ++i)
      CHECK(test::mismatch(got[i].to(kCpu), want[i], 1e-12) == "");
  });
}

TEST_CASE("MoE: 20 steps in bf16 stay close to the CPU's") {
  const Tensor ids = random({2, 8}, 1, DType::i32);
  const auto train = [&](Device device) {
    nn::Gpt model({.arch = nn::Arch::llama,
                   .layers = 2,
                   .heads = 2,
                   .dim = 16,
                   .seq = 8,
                   .vocab = 13,
                   .moe = {.experts = 4,
                           .router = {.balance = {{nn::Balance::aux, 0.01}}},
                           .ffn = 16,
                           .shared_ffn = 8}});
    nn::init(model, 1);
    model.to(DType::bf16);
    model.to(device);
    for (Tensor& p : model.parameters())
      p.set_main_grad(Tensor::zeros(p.shape(), DType::f32, device));
    optim::AdamW opt(model.named_parameters(), {.lr = 0.01});
    const Tensor in = ids.to(device);
    std::vector<double> losses;
    for (int i = 0; i < 20; ++i) {
      Tape tape;
      const nn::Trunk t = model.trunk(in);
      const Tensor ce = model.loss(t.hidden, model.head, in);
      losses.push_back(ce.item());
      add(ce, t.aux.to(ce.dtype())).backward();
      opt.step();
      opt.zero_grad();
    }
    return losses;
  };
  const std::vector<double> cpu = train(kCpu), gpu = train(kGpu);
  CHECK(cpu.back() < 0.8 * cpu.front());
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(gpu[i] - cpu[i]) < 0.05 * cpu[i]);
  }
}

}  // namespace weft::moe_test
