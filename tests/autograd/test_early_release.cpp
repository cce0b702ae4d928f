// Ops release their saved input before they allocate its gradient, if nothing else owns it.
#include <doctest/doctest.h>

#include "weft/autograd/discard.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/grouped_linear.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/mlp.h"
#include "weft/tests/support.h"

namespace weft::early_release_test {
namespace {

using test::different_bits;

constexpr std::int64_t kRows = 96, kIn = 40;

std::int64_t live() { return memory_stats().live_bytes; }
std::int64_t bytes(std::int64_t rows, std::int64_t columns) {
  return size_class_bytes(rows * columns * 4);
}

Tensor leaf(const Shape& shape, std::uint64_t seed) {
  return Tensor(test::random(shape, seed, DType::f32)).set_requires_grad();
}

struct Result {
  TensorList gradients;
  std::int64_t peak = 0;  // above the level before backward
};

// y = layer(2 x), whose input has no owner but the op, unless `held`.
template <class F>
Result run(const F& layer, const TensorList& weights, bool held) {
  const Tensor x = leaf({kRows, kIn}, 1);
  for (const Tensor& w : weights) w.set_grad({});
  Tape tape;
  Tensor in = mul(x, 2.0);
  const Tensor before = in.detach().clone();
  const Tensor y = layer(in);
  if (!held) in = {};
  const Tensor dy = test::random(y.shape(), 2, DType::f32);
  const std::int64_t start = live();
  reset_peak();
  y.backward(dy);
  Result r;
  r.peak = memory_stats().peak_bytes - start;
  r.gradients.push_back(x.grad());
  for (const Tensor& w : weights) r.gradients.push_back(w.grad());
  if (held) CHECK(different_bits(in, before) == "");
  return r;
}

template <class F>
void check_release(const F& layer, const TensorList& weights) {
  const Result held = run(layer, weights, true), own = run(layer, weights, false);
  for (int i = 0; i < own.gradients.size(); ++i)
    CHECK(different_bits(own.gradients[i], held.gradients[i]) == "");
  CHECK(held.peak - own.peak == bytes(kRows, kIn));
}

}  // namespace

TEST_CASE("early release: a linear layer") {
  const Tensor w = leaf({6, kIn}, 3), b = leaf({6}, 4);
  check_release([&](const Tensor& x) { return linear(x, w, b); }, {w, b});
}

TEST_CASE("early release: products of experts") {
  const Tensor w = leaf({2, 6, kIn}, 3), rows = Tensor::of({40, 56}, {2}, DType::i64);
  check_release([&](const Tensor& x) { return grouped_linear(x, w, {}, rows); }, {w});
}

// The input that is computed again does not yet exist while the hidden layer's gradient does.
TEST_CASE("early release: the input of an MLP comes back after the gradient of its hidden layer") {
  const Tensor up = leaf({4 * kIn, kIn}, 3), down = leaf({kIn, 4 * kIn}, 4);
  const auto peak = [&](bool on, TensorList& gradients) {
    const Tensor x = leaf({kRows, kIn}, 1);
    for (const Tensor& w : {up, down}) w.set_grad({});
    const std::int64_t start = live();
    Tape tape;
    const Tensor y = use_discarded(
        on, {x}, [](const TensorList& in) { return mul(in[0], 2.0); },
        [&](const Tensor& in) { return mlp(in, up, {}, down, {}); });
    const Tensor dy = test::random(y.shape(), 2, DType::f32);
    reset_peak();
    y.backward(dy);
    gradients = {x.grad(), up.grad(), down.grad()};
    return memory_stats().peak_bytes - start;
  };
  TensorList want, got;
  const std::int64_t kept = peak(false, want), again = peak(true, got);
  CHECK(kept - again == bytes(kRows, kIn));
  for (int i = 0; i < 3; ++i) CHECK(different_bits(got[i], want[i]) == "");
}

}  // namespace weft::early_release_test
