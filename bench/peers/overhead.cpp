// What bench_overhead measures, in libtorch: one op on 16 floats, not recorded, recorded, and for
// each node of backward. Prints rows of the same names as JSON. Built by run.py; no part of Weft.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

constexpr int kChain = 256;  // ops in one graph

double now() {
  const auto t = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(t).count();
}

// The median of `runs` samples after two that are thrown away.
template <class F>
double median(int runs, F sample) {
  std::vector<double> samples;
  for (int i = 0; i < runs + 2; ++i) {
    const double value = sample();
    if (i >= 2) samples.push_back(value);
  }
  std::nth_element(samples.begin(), samples.begin() + runs / 2, samples.end());
  return samples[static_cast<std::size_t>(runs / 2)];
}

template <class F>
double nanoseconds_per_call(F f) {
  constexpr int kCalls = 20000;
  for (int i = 0; i < kCalls; ++i) f();
  return median(7, [&] {
    const double start = now();
    for (int i = 0; i < kCalls; ++i) f();
    return 1e9 * (now() - start) / kCalls;
  });
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
