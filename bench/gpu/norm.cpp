// layer_norm and rms_norm, forward and backward, with and without the residual's addition.
#include "weft/bench/gpu/gpu_bench.h"
#include "weft/core/kernels/layer_norm.h"
#include "weft/core/kernels/rms_norm.h"

namespace weft::bench {
namespace {

using Values = Buffers::Values;
constexpr double kEps = 1e-5;

struct Arrays {
  std::int64_t rows, width;
  Tensor weight, bias, mean, rstd, dweight, dbias;
  Tensor two_sums, one_sum;  // scratch of backward with and without a bias
  Buffers x, residual, sum, y;

  Arrays(std::int64_t r, std::int64_t c, DType dtype, int sets)
      : rows(r),
        width(c),
        weight(uniform({c}, dtype)),
        bias(uniform({c}, dtype)),
        mean(Tensor::zeros({r}, DType::f32, kGpu)),
        rstd(Tensor::ones({r}, DType::f32, kGpu)),
        dweight(Tensor::empty({c}, dtype, kGpu)),
        dbias(Tensor::empty({c}, dtype, kGpu)),
        two_sums(Tensor::empty({2, norm_chunks(r, true), c}, DType::f32, kGpu)),
        one_sum(Tensor::empty({1, norm_chunks(r, true), c}, DType::f32, kGpu)),
        x({r, c}, dtype, sets, Values::uniform),
        residual({r, c}, dtype, sets, Values::uniform),
        sum({r, c}, dtype, sets, Values::poison),
        y({r, c}, dtype, sets, Values::poison) {}
};

void measure(GpuBench& bench, std::int64_t rows, std::int64_t width, DType dtype) {
  const Shape shape{rows, width};
  const Arrays a(rows, width, dtype, cold_sets(shape, dtype));
  const double array = a.x.bytes();
  const Tensor none;
  const auto name = [&](const char* op) { return row_name(op, dtype, shape); };

  bench.memory_bound({name("layer_norm forward"), 2 * array, {a.y}, [&](int i) {
                        cuda::layer_norm_fwd(a.x[i], none, a.weight, a.bias, kEps, none, a.y[i],
                                             a.mean, a.rstd);
                      }});
  bench.memory_bound({name("layer_norm forward residual"), 4 * array, {a.sum, a.y}, [&](int i) {
                        cuda::layer_norm_fwd(a.x[i], a.residual[i], a.weight, a.bias, kEps,
                                             a.sum[i], a.y[i], a.mean, a.rstd);
                      }});
  // From here on `residual` is the gradient of y, `sum` that of the sum, and y receives that of x.
  bench.memory_bound({name("layer_norm backward"), 3 * array, {a.y}, [&](int i) {
                        cuda::layer_norm_bwd(a.x[i], a.residual[i], a.weight, a.mean, a.rstd, none,
                                             a.two_sums, a.y[i], a.dweight, a.dbias);
                      }});
  bench.memory_bound({name("layer_norm backward residual"), 4 * array, {a.y}, [&](int i) {
                        cuda::layer_norm_bwd(a.x[i], a.residual[i], a.weight, a.mean, a.rstd,
                                             a.sum[i], a.two_sums, a.y[i], a.dweight, a.dbias);
                      }});

  bench.memory_bound({name("rms_norm forward"), 2 * array, {a.y}, [&](int i) {
                        cuda::rms_norm_fwd(a.x[i], none, a.weight, kEps, none, a.y[i], a.rstd);
                      }});
  bench.memory_bound({name("rms_norm forward residual"), 4 * array, {a.sum, a.y}, [&](int i) {
                        cuda::rms_norm_fwd(a.x[i], a.residual[i], a.weight, kEps, a.sum[i], a.y[i],
                                           a.rstd);
                      }});
  bench.memory_bound({name("rms_norm backward"), 3 * array, {a.y}, [&](int i) {
                        cuda::rms_norm_bwd(a.x[i], a.residual[i], a.weight, a.rstd, none, a.one_sum,
                                           a.y[i], a.dweight);
                      }});
  bench.memory_bound({name("rms_norm backward residual"), 4 * array, {a.y}, [&](int i) {
                        cuda::rms_norm_bwd(a.x[i], a.residual[i], a.weight, a.rstd, a.sum[i],
                                           a.one_sum, a.y[i], a.dweight);
                      }});
}

}  // namespace

void norm_part(GpuBench& bench) {
  if (bench.quick()) return measure(bench, 9, 96, DType::bf16);
  for (const std::int64_t width : {768, 1024, 1600, 4096})
    measure(bench, 65536, width, DType::bf16);
  measure(bench, 65536, 768, DType::f32);
}

}  // namespace weft::bench
