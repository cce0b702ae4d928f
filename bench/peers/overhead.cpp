// The measurements of bench_overhead in libtorch: one op on 16 floats, not recorded, recorded, and
// per node of backward. Prints rows with the same names as JSON. Built by run.py; not part of Weft.
#include <torch/torch.h>

#include <cstdio>

#include "../timing.h"

namespace {

constexpr int kChain = 256;  // ops in one graph

using weft::bench::median;
using weft::bench::now;

template <class F>
double nanoseconds_per_call(F f) {
  return 1e9 * weft::bench::seconds_per_call(f);
}

void row(const char* op, const char* what, double value, bool last = false) {
  std::printf("  {\"name\": \"%s%s\", \"value\": %.6g, \"unit\": \"ns\"}%s\n", op, what, value,
              last ? "" : ",");
}

template <class Op>
void measure(const char* name, Op op) {
  torch::Tensor x = torch::randn({4, 4});
  const torch::Tensor w = torch::randn({4, 4}) * 0.5;
  {
    const torch::NoGradGuard off;
    row(name, ", not recorded", nanoseconds_per_call([&] { const auto y = op(x, w); }));
  }
  {
    const c10::InferenceMode on;
    const torch::Tensor a = torch::randn({4, 4}), b = torch::randn({4, 4});
    row(name, ", inference mode", nanoseconds_per_call([&] { const auto y = op(a, b); }));
  }
  x.set_requires_grad(true);
  const torch::Tensor dy = torch::ones({4, 4});
  double forward = 0;
  const auto one_graph = [&] {
    const double start = now();
    torch::Tensor y = x;
    for (int i = 0; i < kChain; ++i) y = op(y, w);
    const double middle = now();
    y.backward(dy);
    const double end = now();
    x.mutable_grad().reset();
    forward = 1e9 * (middle - start) / kChain;
    return 1e9 * (end - middle) / kChain;
  };
  row(name, ", recorded", median(101, [&] {
        one_graph();
        return forward;
      }));
  row(name, ", backward", median(101, one_graph));
}

}  // namespace

int main() {
  using torch::Tensor;
  torch::set_num_threads(1);
  std::printf("[\n");
  measure("add", [](const Tensor& x, const Tensor& w) { return torch::add(x, w); });
  measure("mul", [](const Tensor& x, const Tensor& w) { return torch::mul(x, w); });
  measure("gelu", [](const Tensor& x, const Tensor&) { return torch::gelu(x, "tanh"); });
  measure("matmul 4x4", [](const Tensor& x, const Tensor& w) { return torch::matmul(x, w); });
  const torch::NoGradGuard off;
  row("allocate and free 16 floats", "", nanoseconds_per_call([] {
        const Tensor t = torch::empty({4, 4});
      }),
      true);
  std::printf("]\n");
}
