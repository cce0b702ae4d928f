// Matrix products at the shapes of GPT-2: M rows, N outputs, K inputs.
#include "weft/autograd/linear_cross_entropy.h"
#include "weft/autograd/tape.h"
#include "weft/bench/gpu/gpu_bench.h"
#include "weft/core/gemm.h"
#include "weft/core/kernels/gemm_epilogue.h"

namespace weft::bench {
namespace {

using Values = Buffers::Values;

void measure(GpuBench& bench, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype,
             bool all) {
  const auto buffers = [&](const Shape& shape, DType type, Values values) {
    return Buffers(shape, type, cold_sets(shape, type), values);
  };
  const double flops = 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const auto name = [&](const char* op) { return row_name(op, dtype, {m, n, k}); };
  const Buffers x = buffers({m, k}, dtype, Values::uniform);
  const Buffers weight = buffers({n, k}, dtype, Values::uniform);
  {
    const Buffers y = buffers({m, n}, dtype, Values::poison);
    bench.arithmetic({name("product forward"), flops, {y}, [&](int i) {
                        gemm(x[i], transposed(weight[i]), y[i]);
                      }});
    const Tensor bias = uniform({n}, dtype);
    bench.arithmetic({name("product forward bias"), flops, {y}, [&](int i) {
                        gemm_bias(x[i], weight[i], bias, y[i]);
                      }});
  }
  if (!all) return;
  const Buffers dy = buffers({m, n}, dtype, Values::uniform);
  const Buffers dx = buffers({m, k}, dtype, Values::poison);
  bench.arithmetic(
      {name("product input gradient"), flops, {dx}, [&](int i) { gemm(dy[i], weight[i], dx[i]); }});
  const Buffers dweight = buffers({n, k}, dtype, Values::poison);
  bench.arithmetic({name("product weight gradient"), flops, {dweight}, [&](int i) {
                      gemm(transposed(dy[i]), x[i], dweight[i]);
                    }});
  if (dtype != DType::bf16) return;
  const Buffers main_grad = buffers({n, k}, DType::f32, Values::zeros);
  bench.arithmetic({name("product weight gradient added to f32"), flops, {main_grad}, [&](int i) {
                      gemm(transposed(dy[i]), x[i], main_grad[i], true);
                    }});
}

// The first layer of an MLP with fused epilogues, one call each.
void measure_mlp(GpuBench& bench, std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr DType kType = DType::bf16;
  const auto buffers = [&](const Shape& shape, Values values) {
    return Buffers(shape, kType, cold_sets(shape, kType), values);
  };
  const double flops = 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  const auto name = [&](const char* op) { return row_name(op, kType, {m, n, k}); };
  const Tensor bias = uniform({n}, kType), dbias = uniform({n}, kType);
  const Tensor partial = Tensor::empty({epilogue_partial(m, n, kGpu)}, DType::f64, kGpu);
  const Buffers hidden = buffers({m, n}, Values::uniform);
  {
    const Buffers x = buffers({m, k}, Values::uniform), weight = buffers({n, k}, Values::uniform);
    const Buffers act = buffers({m, n}, Values::poison);
    bench.arithmetic({name("product forward bias gelu"), flops, {act}, [&](int i) {
                        cuda::gemm_gelu(x[i], weight[i], bias, true, hidden[i], act[i]);
                      }});
    const Buffers dy = buffers({m, n}, Values::uniform), dweight = buffers({n, k}, Values::poison);
    bench.arithmetic({name("product weight and bias gradient"), flops, {dweight}, [&](int i) {
                        cuda::gemm_bias_grad(dy[i], x[i], false, Tensor(), partial, dweight[i],
                                             dbias);
                      }});
  }
  const Buffers dy = buffers({m, k}, Values::uniform), down = buffers({k, n}, Values::uniform);
  const Buffers dhidden = buffers({m, n}, Values::poison);
  bench.arithmetic({name("product gelu gradient"), flops, {dhidden}, [&](int i) {
                      cuda::gemm_gelu_bwd(
                          {.dy = dy[i], .weight = down[i], .hidden = hidden[i], .tanh = true},
                          {.dhidden = dhidden[i],
                           .dbias = dbias,
                           .act = Tensor(),
                           .scratch = Tensor(),
                           .partial = partial});
                    }});
}

// The fused head and loss: forward, and the products of both gradients. An odd number of classes
// must cost as much as the next multiple of 64.
void measure_head(GpuBench& bench, std::int64_t rows, std::int64_t classes, std::int64_t width) {
  constexpr DType kType = DType::bf16;
  const Tensor x = uniform({rows, width}, kType).set_requires_grad();
  const Tensor weight = uniform({classes, width}, kType).set_requires_grad();
  const Tensor targets = spread_ids(rows, classes).to(kGpu);
  const double flops = 6 * static_cast<double>(rows * classes * width);
  bench.arithmetic({row_name("head and loss", kType, {rows, classes, width}), flops, {}, [&](int) {
                      Tape tape;
                      linear_cross_entropy(x, weight, targets);
                    }});
}

}  // namespace

void products_part(GpuBench& bench) {
  if (bench.quick()) {
    measure(bench, 16, 8, 24, DType::bf16, true);
    measure_head(bench, 16, 9, 24);
    return measure_mlp(bench, 16, 8, 24);
  }
  constexpr std::int64_t kWeights[][2] = {{2304, 768},  {768, 768},   {3072, 768},  {768, 3072},
                                          {50304, 768}, {50257, 768}, {4800, 1600}, {6400, 1600}};
  bench.warm_up();
  measure(bench, 8192, 8192, 8192, DType::bf16, false);
  for (const auto& [n, k] : kWeights) measure(bench, 65536, n, k, DType::bf16, true);
  for (const auto& [n, k] : kWeights) measure(bench, 4096, n, k, DType::bf16, false);
  for (const std::int64_t classes : {50257, 50304}) measure_head(bench, 65536, classes, 768);
  measure_mlp(bench, 65536, 3072, 768);
  measure_mlp(bench, 16384, 6400, 1600);
  measure(bench, 4096, 4096, 4096, DType::f32, false);
}

}  // namespace weft::bench
