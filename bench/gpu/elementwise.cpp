// GELU, SwiGLU, RoPE and dropout.
#include "weft/core/kernels/elementwise.h"

#include "weft/autograd/rope.h"
#include "weft/bench/gpu/gpu_bench.h"
#include "weft/core/kernels/dropout.h"
#include "weft/core/kernels/rope.h"
#include "weft/core/kernels/swiglu.h"

namespace weft::bench {
namespace {

using Values = Buffers::Values;

void measure_activations(GpuBench& bench, const Shape& shape, DType dtype) {
  const int sets = cold_sets(shape, dtype);
  const auto inputs = [&] { return Buffers(shape, dtype, sets, Values::uniform); };
  const auto outputs = [&] { return Buffers(shape, dtype, sets, Values::poison); };
  const auto name = [&](const char* op) { return row_name(op, dtype, shape); };
  const Buffers x = inputs(), dy = inputs(), up = inputs(), y = outputs(), dup = outputs();
  const double array = x.bytes();
  bench.memory_bound({name("gelu forward"), 2 * array, {y}, [&](int i) {
                        cuda::unary(x[i], UnaryOp::gelu_tanh, y[i]);
                      }});
  bench.memory_bound({name("gelu backward"), 3 * array, {y}, [&](int i) {
                        cuda::binary(x[i], dy[i], BinaryOp::gelu_tanh_bwd, y[i]);
                      }});
  bench.memory_bound({name("swiglu forward"), 3 * array, {y}, [&](int i) {
                        cuda::swiglu_fwd(x[i], up[i], y[i]);
                      }});
  bench.memory_bound({name("swiglu backward"), 5 * array, {y, dup}, [&](int i) {
                        cuda::swiglu_bwd(x[i], up[i], dy[i], y[i], dup[i]);
                      }});
}

void measure_rope(GpuBench& bench, const Shape& shape, DType dtype) {
  const int sets = cold_sets(shape, dtype);
  const Buffers x(shape, dtype, sets, Values::uniform), y(shape, dtype, sets, Values::poison);
  const RopeTables tables = rope_tables(shape[1], shape[3]);
  const Tensor cos = tables.cos.to(kGpu), sin = tables.sin.to(kGpu);
  bench.memory_bound({row_name("rope", dtype, shape), 2 * x.bytes(), {y}, [&](int i) {
                        cuda::rope(x[i], cos, sin, Tensor(), 0, false, x[i].dim(2), y[i]);
                      }});
}

void measure_dropout(GpuBench& bench, const Shape& shape, DType dtype) {
  constexpr auto kTenth = static_cast<std::uint32_t>(0.1 * 0x1p24);
  const int sets = cold_sets(shape, dtype);
  const Buffers x(shape, dtype, sets, Values::uniform), y(shape, dtype, sets, Values::poison);
  bench.memory_bound({row_name("dropout", dtype, shape), 2 * x.bytes(), {y}, [&](int i) {
                        const RandomKey key{.seed = 1, .stream = static_cast<std::uint64_t>(i)};
                        cuda::dropout(x[i], key, kTenth, 1 / 0.9, y[i]);
                      }});
}

}  // namespace

void elementwise_part(GpuBench& bench) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    measure_activations(bench, bench.quick() ? Shape{8, 48} : Shape{65536, 3072}, dtype);
    measure_rope(bench, bench.quick() ? Shape{1, 4, 2, 8} : Shape{64, 1024, 12, 64}, dtype);
    measure_dropout(bench, bench.quick() ? Shape{8, 48} : Shape{65536, 768}, dtype);
  }
}

}  // namespace weft::bench
