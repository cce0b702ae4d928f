// FP8 rows that travel between ranks on one GPU.
#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/distributed/device_mesh.h"
#include "weft/distributed/fp8_overlap.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/moe.h"
#include "weft/tests/cuda/gpu.h"
#include "weft/tests/group_conformance.h"

namespace weft::distributed::fp8_ranks_test {
namespace {

using test::kGpu;
using test::mismatch;
using test::random;

struct Layer {
  Tensor x, w1, b, w2;
  Layer(int rank, DType dtype, Device device) {
    const auto seed = 10 * static_cast<std::uint64_t>(rank);
    x = random({32, 48}, seed + 1).to(dtype).to(device);
    w1 = mul(random({64, 48}, seed + 2), 0.1).to(dtype).to(device);
    b = random({64}, seed + 3).to(dtype).to(device);
    w2 = mul(random({48, 64}, seed + 4), 0.1).to(dtype).to(device);
    for (Tensor* t : {&x, &w1, &b, &w2}) t->set_requires_grad();
  }
};

TensorList run(ProcessGroup& g, DType dtype, Device device, const Fp8Rows& how) {
  const Layer l(g.rank(), dtype, device);
  const fp8::Recipe r;
  const fp8::LayerState up, down;
  Tape tape;
  const Tensor h = gelu(fp8_gather_linear(l.x, l.w1, l.b, r, &up, g, how));
  const Tensor y = fp8_linear_scatter(h, l.w2, r, &down, g, how.overlap);
  const Tensor dy = mul(random(y.shape(), 7), 1e-3).to(dtype).to(device);
  const TensorList grads = tape.gradients(y, {l.x, l.w1, l.b, l.w2}, dy);
  TensorList out{y.detach().to(kCpu)};
  for (const Tensor& t : grads) out.push_back(t.to(kCpu));
  return out;
}

}  // namespace

TEST_CASE("fp8 ranks: a column-parallel and a row-parallel layer agree with the CPU's") {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [](World& w) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const TensorList want = run(w.all(), dtype, kCpu, {});
        for (const Fp8Rows& how :
             {Fp8Rows{}, Fp8Rows{Overlap::none, true}, Fp8Rows{Overlap::ring}}) {
          const TensorList got = run(w.all(), dtype, kGpu, how);
          // A sum in another order may round to the next code.
          for (int i = 0; i < want.size(); ++i) CHECK(mismatch(got[i], want[i], 0.03) == "");
          CHECK(mismatch(got[0], want[0], dtype == DType::f32 ? 2e-3 : 2e-2) == "");
        }
      }
    });
}

TEST_CASE("fp8 ranks: rows of a rank that are no operand of a product are refused with overlap") {
  run_ranks(2, [](World& w) {
    const fp8::Recipe r;
    const Tensor x = random({24, 16}, 1, DType::bf16).to(kGpu);
    const Tensor weight = random({16, 16}, 2, DType::bf16).to(kGpu);
    const auto message = [&](Overlap form) {
      return test::error_of([&] { fp8_gather_linear(x, weight, {}, r, nullptr, w.all(), {form}); });
    };
    CHECK(message(Overlap::none) == "no error");
    CHECK(message(Overlap::ring) ==
          "fp8_gather_linear: on a GPU overlap needs rows of each rank that are a multiple of 16, "
          "got 24");
    const Tensor all = random({48, 16}, 3, DType::bf16).to(kGpu);
    CHECK(test::error_of(
              [&] { fp8_linear_scatter(all, weight, r, nullptr, w.all(), Overlap::pipeline); }) ==
          "fp8_linear_scatter: on a GPU overlap needs rows of each rank that are a multiple of 16, "
          "got 24");
  });
}

TEST_CASE("fp8 ranks: tokens that travel as codes arrive as on the CPU") {
  run_ranks(2, [](World& w) {
    const DeviceMesh mesh(w, {.ep = 2});
    for (const Dispatcher kind : {Dispatcher::all_to_all, Dispatcher::all_gather}) {
      const auto tokens = [&](Device device) {
        nn::MoE m(144, {.experts = 4, .router = {.init = nn::Init::normal(1)}, .ffn = 16});
        nn::init(m, 3);
        shard_experts(m, mesh, {.dispatcher = kind, .tokens = nn::TokenForm::fp8});
        m.to(device);
        const Tensor x = random({9, 144}, 1 + static_cast<std::uint64_t>(w.rank()), DType::f32);
        const Routing routing = m.router(x.to(device)).routing;
        nn::Dispatch d = m.dispatcher().dispatch_preprocess(x.to(device), routing, 16);
        m.dispatcher().token_dispatch(d);
        m.dispatcher().dispatch_postprocess(d);
        return d.tokens.to(kCpu);
      };
      CHECK(test::different_bits(tokens(kGpu), tokens(kCpu)) == "");
    }
  });
}

}  // namespace weft::distributed::fp8_ranks_test
