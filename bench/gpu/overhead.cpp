// The fixed cost of an op, with 16 elements. "issued": time until the host continues; "done": time
// until the GPU has finished.
#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/bench/gpu/gpu_bench.h"
#include "weft/core/cuda.h"

namespace weft::bench {
namespace {

/// Rows "name: issued" and "name: done", per op, for the `ops` ops that run() launches.
template <class F>
void measure(GpuBench& bench, const std::string& name, int ops, F&& run) {
  if (bench.report().earlier(name + ": issued")) return;
  std::vector<double> issued, done;
  const int runs = bench.quick() ? 1 : 101;
  for (int i = 0; i < runs + 2; ++i) {
    cuda::synchronize(kGpu);
    const double start = run();
    const double middle = now();
    cuda::synchronize(kGpu);
    const double end = now();
    if (i < 2) continue;  // the first calls fill caches
    issued.push_back(1e9 * (middle - start) / ops);
    done.push_back(1e9 * (end - start) / ops);
  }
  bench.report().rows(
      {{name + ": issued", median(issued), "ns/op"}, {name + ": done", median(done), "ns/op"}});
}

}  // namespace

void overhead_part(GpuBench& bench) {
  // Fewer than the launches that the driver queues before it blocks the host.
  const int chain = bench.quick() ? 4 : 256;
  Tensor x = uniform({16}, DType::f32);
  const Tensor w = uniform({16}, DType::f32);
  const auto forward = [&] {
    Tensor y = x;
    for (int i = 0; i < chain; ++i) y = add(y, w);
    return y;
  };
  measure(bench, "add of 16", chain, [&] {
    const double start = now();
    forward();
    return start;
  });
  x.set_requires_grad();
  measure(bench, "add of 16, recorded", chain, [&] {
    const double start = now();
    const Tape tape;
    forward();
    return start;
  });
  const Tensor dy = uniform({16}, DType::f32);
  measure(bench, "add of 16, backward", chain, [&] {
    const Tape tape;
    const Tensor y = forward();
    cuda::synchronize(kGpu);
    const double start = now();
    y.backward(dy);
    x.set_grad({});
    return start;
  });
  for (const std::int64_t bytes : {1 << 10, 1 << 20, 1 << 26})
    measure(bench, message("allocate and free {} bytes", bytes), chain, [&] {
      const double start = now();
      for (int i = 0; i < chain; ++i) Tensor::empty({bytes}, DType::u8, kGpu);
      return start;
    });
}

}  // namespace weft::bench
