// The fixed cost of an op: with 16 elements, nearly all of the time is checks, allocation, dispatch
// and the tape.
#include "weft/autograd/elementwise.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/tape.h"
#include "weft/bench/harness.h"
#include "weft/core/random.h"
#include "weft/core/tensor.h"

using namespace weft;

namespace {

constexpr int kChain = 256;  // ops on one tape

template <class Op>
void measure(bench::Report& report, const std::string& name, Op op) {
  Tensor x = rand_normal({4, 4});
  const Tensor w = rand_normal({4, 4}, 0, 0.5);
  report.row(name + ", not recorded",
             1e9 * bench::seconds_per_call([&] { const Tensor y = op(x, w); }), "ns/op");

  x.set_requires_grad();
  double forward = 0;
  const auto one_tape = [&] {
    Tape tape;
    const double start = bench::now();
    Tensor y = x;
    for (int i = 0; i < kChain; ++i) y = op(y, w);
    forward = bench::now() - start;
    const Tensor dy = Tensor::ones({4, 4});
    const double middle = bench::now();
    y.backward(dy);
    const double backward = bench::now() - middle;
    x.set_grad({});
    return backward;
  };
  report.row(name + ", recorded",
             1e9 / kChain *
                 bench::median(101,
                               [&] {
                                 one_tape();
                                 return forward;
                               }),
             "ns/op");
  report.row(name + ", backward", 1e9 / kChain * bench::median(101, one_tape), "ns/node");
}

}  // namespace

int main(int argc, char** argv) try {
  bench::Report report(argc, argv);
  measure(report, "add", [](const Tensor& x, const Tensor& w) { return add(x, w); });
  measure(report, "mul", [](const Tensor& x, const Tensor& w) { return mul(x, w); });
  measure(report, "gelu", [](const Tensor& x, const Tensor&) { return gelu(x); });
  measure(report, "matmul 4x4", [](const Tensor& x, const Tensor& w) { return matmul(x, w); });
  report.row("allocate and free 16 floats", 1e9 * bench::seconds_per_call([] {
                                              const Tensor t = Tensor::empty({4, 4});
                                            }),
             "ns");
  report.row("copy and drop a handle",
             1e9 * bench::seconds_per_call([t = Tensor::empty({4, 4})] { const Tensor copy = t; }),
             "ns");
  return report.finish();
} catch (const Error& e) {
  return bench::failed(argv[0], e);
}
