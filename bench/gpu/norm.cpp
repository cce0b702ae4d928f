// layer_norm and rms_norm, forward and backward, with and without the residual's addition.
#include "weft/core/kernels/norm.h"

#include "weft/bench/gpu/gpu_bench.h"

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
  const struct {
    std::string op;
    NormFwdKernel* forward;
    NormBwdKernel* backward;
    const Tensor &bias, &mean, &dbias, &partials;
  } norms[] = {{"layer_norm", cuda::layer_norm_fwd, cuda::layer_norm_bwd, a.bias, a.mean, a.dbias,
                a.two_sums},
               {"rms_norm", cuda::rms_norm_fwd, cuda::rms_norm_bwd, none, none, none, a.one_sum}};
  for (const auto& norm : norms) {
    const auto name = [&](const char* pass) { return row_name(norm.op + pass, dtype, shape); };
    const auto forward = [&](int i, const Tensor& residual, const Tensor& sum) {
      norm.forward(
          {.x = a.x[i], .residual = residual, .weight = a.weight, .bias = norm.bias, .eps = kEps},
          {.sum = sum, .y = a.y[i], .mean = norm.mean, .rstd = a.rstd, .rounded = {}});
    };
    bench.memory_bound(
        {name(" forward"), 2 * array, {a.y}, [&](int i) { forward(i, none, none); }});
    bench.memory_bound({name(" forward residual"), 4 * array, {a.sum, a.y}, [&](int i) {
                          forward(i, a.residual[i], a.sum[i]);
                        }});
    // `residual` is the gradient of y here, `sum` that of the sum, and y receives that of x.
    const auto backward = [&](int i, const Tensor& dsum) {
      norm.backward(
          {.x = a.x[i],
           .dy = a.residual[i],
           .weight = a.weight,
           .mean = norm.mean,
           .rstd = a.rstd,
           .dsum = dsum},
          {.dx = a.y[i], .dweight = a.dweight, .dbias = norm.dbias, .partials = norm.partials});
    };
    bench.memory_bound({name(" backward"), 3 * array, {a.y}, [&](int i) { backward(i, none); }});
    bench.memory_bound(
        {name(" backward residual"), 4 * array, {a.y}, [&](int i) { backward(i, a.sum[i]); }});
  }
}

}  // namespace

void norm_part(GpuBench& bench) {
  if (bench.quick()) return measure(bench, 9, 96, DType::bf16);
  for (const std::int64_t width : {768, 1024, 1600, 4096})
    measure(bench, 65536, width, DType::bf16);
  measure(bench, 65536, 768, DType::f32);
}

}  // namespace weft::bench
