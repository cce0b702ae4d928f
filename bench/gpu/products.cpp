// Matrix products at the shapes of GPT-2: M rows, N outputs, K inputs.
#include "weft/bench/gpu/gpu_bench.h"
#include "weft/core/gemm.h"

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

}  // namespace

void products_part(GpuBench& bench) {
  if (bench.quick()) return measure(bench, 16, 8, 24, DType::bf16, true);
  constexpr std::int64_t kWeights[][2] = {{2304, 768},  {768, 768},   {3072, 768}, {768, 3072},
                                          {50304, 768}, {4800, 1600}, {6400, 1600}};
  bench.warm_up();
  measure(bench, 8192, 8192, 8192, DType::bf16, false);
  for (const auto& [n, k] : kWeights) measure(bench, 65536, n, k, DType::bf16, true);
  for (const auto& [n, k] : kWeights) measure(bench, 4096, n, k, DType::bf16, false);
  measure(bench, 4096, 4096, 4096, DType::f32, false);
}

}  // namespace weft::bench
