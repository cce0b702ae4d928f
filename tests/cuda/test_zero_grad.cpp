// What a training step does with the sums of small gradients: the first one overwrites, and they
// grow without rounding in between.
#include <doctest/doctest.h>

#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/layer_norm.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/rms_norm.h"
#include "weft/autograd/tape.h"
#include "weft/core/cuda_graph.h"
#include "weft/optim/sgd.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::zero_grad_test {
namespace {

using test::for_each_order;
using test::kGpu;
using test::random;

// Odd sizes, no elements, more than a chunk, and one that starts between two packs.
const Shape kZeroShapes[] = {{5, 3}, {0, 4}, {16'384 + 37}, {64}, {31}, {1}};

NamedTensors with_sums(Device device) {
  NamedTensors all;
  for (const Shape& shape : kZeroShapes)
    for (const DType sum : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      const DType dtype = sum == DType::f64 ? DType::f64 : DType::bf16;
      const Tensor p = Tensor::zeros(shape, dtype, device).set_requires_grad();
      Tensor g = random(shape, 7, sum).to(device);
      if (shape.numel() == 31) {
        const Tensor longer = Tensor::ones({33}, sum, device);
        g = longer.narrow(0, 1, 31);
      }
      p.set_main_grad(g);
      all.push_back({"p" + std::to_string(all.size()), p});
    }
  return all;
}

// The sum of bf16 gradients of `weight`, over two passes, in its main_grad.
template <class F>
Tensor summed(Device device, const F& loss) {
  const Tensor w = random({24}, 2, DType::bf16).to(device).set_requires_grad();
  w.set_main_grad(Tensor::full({24}, std::numeric_limits<double>::quiet_NaN(), DType::f32, device));
  w.set_main_grad_filled(false);
  for (std::uint64_t pass = 0; pass < 2; ++pass) {
    const Tape tape;
    loss(random({9, 24}, 3 + pass, DType::bf16).to(device), w).backward();
  }
  CHECK(w.main_grad_filled());
  CHECK(!w.grad().defined());
  return w.main_grad().to(kCpu);
}

}  // namespace

TEST_CASE("zero_grad: sums of every dtype and size count as empty, and nothing runs") {
  for (const Device device : {kCpu, kGpu})
    for_each_order([&] {
      const NamedTensors all = with_sums(device);
      optim::Sgd optimizer(all, {.lr = 1});
      const std::int64_t waits = cuda::host_syncs();
      optimizer.zero_grad();
      CHECK(cuda::host_syncs() == waits);
      for (const NamedTensor& p : all) {
        CAPTURE(p.name);
        const Tensor g = p.tensor.main_grad();
        CHECK(!p.tensor.main_grad_filled());
        p.tensor.zero_grad();
        CHECK(test::different_bits(g.to(kCpu), Tensor::zeros(g.shape(), g.dtype())) == "");
        CHECK(!p.tensor.main_grad_filled());
      }
    });
}

TEST_CASE(
    "zero_grad: a sum that other code wrote counts again, and the neighbours of a view stay") {
  const Tensor longer = Tensor::ones({33}, DType::f32, kGpu);
  const Tensor p = Tensor::zeros({31}, DType::bf16, kGpu).set_requires_grad();
  p.set_main_grad(longer.narrow(0, 1, 31));
  optim::Sgd optimizer({{"p", p}}, {.lr = 1});
  for_each_order([&] {
    longer.fill_(1);
    optimizer.zero_grad();
    CHECK(longer.sum().item() == 33);
    p.zero_grad();
    CHECK(longer.to(kCpu).data<float>()[0] == 1);
    CHECK(longer.to(kCpu).data<float>()[32] == 1);
    CHECK(longer.sum().item() == 2);
  });
  const Tensor own = Tensor::ones({4}, DType::f32, kGpu);
  p.set_main_grad({});
  const Tensor q = Tensor::zeros({4}, DType::bf16, kGpu).set_requires_grad();
  q.set_main_grad(Tensor::zeros({4}, DType::f32, kGpu));
  optim::Sgd other({{"q", q}}, {.lr = 1});
  other.zero_grad();
  CHECK(!q.main_grad_filled());
  q.main_grad().fill_(1);
  CHECK(q.main_grad_filled());
}

TEST_CASE("zero_grad: sums without a kernel that adds to them") {
  const auto loss = [](const Tensor& x, const Tensor& w) { return sum(x * w); };
  // The CPU adds the same rounded gradients.
  for_each_order(
      [&] { CHECK(test::different_bits(summed(kGpu, loss), summed(kCpu, loss)) == ""); });
}

TEST_CASE("zero_grad: norms add to the sums and do not round to bf16") {
  const auto exact = [](const auto& loss) {
    const Tensor w = random({24}, 2, DType::bf16).to(DType::f64).set_requires_grad();
    for (std::uint64_t pass = 0; pass < 2; ++pass) {
      const Tape tape;
      loss(random({9, 24}, 3 + pass, DType::bf16).to(DType::f64), w).backward();
    }
    return w.grad();
  };
  // Each with a cotangent that bf16 represents: the mean over a power of two.
  const auto layer = [](const Tensor& x, const Tensor& w) {
    return sum(layer_norm(x, w, {})) * 0.5;
  };
  const auto bias = [](const Tensor& x, const Tensor& w) {
    return sum(layer_norm(x, {}, w)) * 0.5;
  };
  const auto both = [](const Tensor& x, const Tensor& w) { return sum(layer_norm(x, w, w)) * 0.5; };
  const auto rms = [](const Tensor& x, const Tensor& w) { return sum(rms_norm(x, w)) * 0.5; };
  for_each_order([&] {
    CHECK(test::mismatch(summed(kGpu, layer), exact(layer), 1e-5) == "");
    CHECK(test::mismatch(summed(kGpu, bias), exact(bias), 1e-5) == "");
    CHECK(test::mismatch(summed(kGpu, rms), exact(rms), 1e-5) == "");
    CHECK(test::mismatch(summed(kGpu, both), exact(both), 1e-5) == "");
  });
}

}  // namespace weft::zero_grad_test
