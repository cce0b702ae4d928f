// AdamW and the norm of all gradients, over the parameters of GPT-2 124M.
#include "weft/bench/gpu/gpu_bench.h"
#include "weft/nn/gpt.h"
#include "weft/optim/adamw.h"
#include "weft/optim/clip.h"

namespace weft::bench {
namespace {

/// Tensors with the shapes of the model's parameters, each with a gradient; for bf16 the gradient
/// is f32, as in training.
NamedTensors parameters(const nn::GptConfig& config, DType dtype) {
  const nn::DeviceScope on_meta(kMeta);
  NamedTensors out = nn::Gpt(config).named_parameters();
  for (auto& p : out) {
    const Shape shape = p.tensor.shape();
    p.tensor = uniform(shape, dtype);
    p.tensor.set_requires_grad();
    const Tensor grad = uniform(shape, DType::f32);
    if (dtype == DType::bf16)
      p.tensor.set_main_grad(grad);
    else
      p.tensor.set_grad(grad);
  }
  return out;
}

void measure(GpuBench& bench, const nn::GptConfig& config, DType dtype) {
  const NamedTensors all = parameters(config, dtype);
  std::int64_t count = 0;
  for (const auto& p : all) count += p.tensor.numel();
  const auto n = static_cast<double>(count);
  optim::AdamW optimizer(all, {.lr = 1e-6});
  // f32: p, m, v read and written, g read. bf16: the same for the f32 copy of p, and p written.
  const double bytes = n * (dtype == DType::bf16 ? 30 : 28);
  bench.memory_bound(
      {row_name("adamw", dtype, {count}), bytes, {}, [&](int) { optimizer.step(); }});
  bench.memory_bound({row_name("gradient norm", dtype, {count}), n * 4, {}, [&](int) {
                        optim::measure_clip(all, 1.0);
                      }});
}

}  // namespace

void optimizer_part(GpuBench& bench) {
  const nn::GptConfig tiny{.layers = 1, .heads = 2, .dim = 16, .seq = 8, .vocab = 32};
  const nn::GptConfig gpt2{.layers = 12, .heads = 12, .dim = 768, .seq = 1024, .vocab = 50304};
  for (const DType dtype : {DType::bf16, DType::f32})
    measure(bench, bench.quick() ? tiny : gpt2, dtype);
}

}  // namespace weft::bench
