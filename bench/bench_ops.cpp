// Speed of single ops at the sizes of a small GPT: memory-bound ops in GB/s of the bytes that they
// must read and write, products and attention in GFLOP/s; forward without a tape, and backward
// alone.
// --products MODEL: the products of a model's step instead, or of all with `all`.
#include "weft/autograd/attention.h"
#include "weft/autograd/cross_entropy.h"
#include "weft/autograd/dropout.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/layer_norm.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/rms_norm.h"
#include "weft/autograd/softmax.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/bench/harness.h"
#include "weft/bench/models.h"
#include "weft/bench/product_table.h"
#include "weft/core/random.h"
#include "weft/core/tensor.h"

using namespace weft;

namespace {

constexpr std::int64_t kRows = 4096, kDim = 768, kVocab = 8192;

/// Seconds of the backward pass of y = f(x) alone.
template <class F>
double backward_seconds(Tensor x, F f) {
  x.set_requires_grad();
  return bench::median(5, [&] {
    Tape tape;
    const Tensor y = f(x);
    const Tensor dy = Tensor::ones(y.shape(), y.dtype());
    const double start = bench::now();
    y.backward(dy);
    const double seconds = bench::now() - start;
    x.set_grad({});
    return seconds;
  });
}

/// Two rows, forward and backward, and their work, which bench/peers/ops.py reads.
template <class F>
void rates(bench::Report& report, const std::string& op, const Tensor& x, double work,
           double work_back, const std::string& unit, F f) {
  const std::string name = message("{} {}", op, x.shape());
  report.row(name, work / bench::seconds_per_call([&] { f(x); }), unit + "/s");
  report.row(name + ", backward", work_back / backward_seconds(x, f), unit + "/s");
  report.add(name + ", work", work, unit);
  report.add(name + ", backward, work", work_back, unit);
}

/// `moved`: number of arrays of x's size that forward, and then backward, must read or write.
template <class F>
void memory_bound(bench::Report& report, const std::string& op, const Tensor& x, int moved,
                  int moved_back, F f) {
  const double bytes = static_cast<double>(x.numel()) * static_cast<double>(size_of(x.dtype()));
  rates(report, op, x, moved * bytes / 1e9, moved_back * bytes / 1e9, "GB", f);
}

void product(bench::Report& report, std::int64_t m, std::int64_t n, std::int64_t k, DType dtype) {
  const Tensor x = rand_normal({m, k}, 0, 1, dtype), w = rand_normal({n, k}, 0, 1, dtype);
  const double flops = 2.0 * static_cast<double>(m * n * k);
  report.row(message("linear ({}, {}) x ({}, {}) {}", m, k, n, k, dtype),
             flops / 1e9 / bench::seconds_per_call([&] { linear(x, w); }, 5), "GFLOP/s");
}

/// Causal attention of one layer. Only what the floor of a step counts (bench/floor.h): two
/// products over the keys that a query sees, four in backward, no recomputation.
void causal_attention(bench::Report& report, const bench::StepModel& m) {
  const std::int64_t heads = m.config.heads, dim = m.config.dim;
  const Tensor qkv = rand_normal({m.batch, m.tokens, 3 * heads, dim / heads});
  const auto f = [&](const Tensor& x) {
    return attention_packed(x, heads, heads, {.causal = true});
  };
  const double product = static_cast<double>(m.step_tokens() * (m.tokens + 1) * dim) / 1e9;
  rates(report, message("attention {}", m.name), qkv, 2 * product, 4 * product, "GFLOP", f);
}

}  // namespace

int main(int argc, char** argv) try {
  std::string products;
  bench::Report report(argc, argv, {{"--products", &products, "MODEL"}});
  if (!products.empty()) {
    bench::product_table(report, products);
    return report.finish();
  }
  const Tensor x = rand_normal({kRows, kDim}), other = rand_normal({kRows, kDim});
  const Tensor weight = Tensor::ones({kDim}), bias = Tensor::zeros({kDim});

  memory_bound(report, "add", x, 3, 2, [&](const Tensor& a) { return add(a, other); });
  memory_bound(report, "mul", x, 3, 3, [&](const Tensor& a) { return mul(a, other); });
  memory_bound(report, "gelu", x, 2, 3, [](const Tensor& a) { return gelu(a); });
  memory_bound(report, "silu", x, 2, 3, [](const Tensor& a) { return silu(a); });
  memory_bound(report, "softmax", x, 2, 3, [](const Tensor& a) { return softmax(a); });
  memory_bound(report, "dropout", x, 2, 2, [](const Tensor& a) {
    return dropout(a, 0.1, RandomKey{1, 2, 0});
  });
  memory_bound(report, "sum over rows", x, 1, 1, [](const Tensor& a) { return sum(a, {0}); });
  memory_bound(report, "transpose and copy", x, 2, 2,
               [](const Tensor& a) { return contiguous(transpose(a, 0, 1)); });
  memory_bound(report, "layer_norm", x, 2, 3,
               [&](const Tensor& a) { return layer_norm(a, weight, bias); });
  memory_bound(report, "rms_norm", x, 2, 3, [&](const Tensor& a) { return rms_norm(a, weight); });

  const Tensor logits = rand_normal({kRows / 4, kVocab});
  Tensor targets = Tensor::empty({kRows / 4}, DType::i64);
  for (std::int64_t i = 0; i < targets.numel(); ++i)
    targets.data<std::int64_t>()[i] = i * 31 % kVocab;
  memory_bound(report, "cross_entropy", logits, 1, 2,
               [&](const Tensor& a) { return cross_entropy(a, targets); });

  for (const bench::StepModel& model : bench::kStepModels) causal_attention(report, model);

  product(report, 1024, 768, 768, DType::f32);
  product(report, 1024, 3072, 768, DType::f32);
  product(report, 1024, 768, 3072, DType::f32);
  product(report, 1024, 768, 768, DType::bf16);
  product(report, 256, 256, 256, DType::f64);
  return report.finish();
} catch (const Error& e) {
  return bench::failed(argv[0], e);
}
