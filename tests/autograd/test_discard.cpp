#include <doctest/doctest.h>

#include "weft/autograd/discard.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/values.h"
#include "weft/tests/count_new.h"
#include "weft/tests/support.h"

namespace weft::discard_test {
namespace {

using test::different_bits;
using test::error_of;

constexpr std::int64_t kRows = 48, kWide = 80;
std::int64_t live(Device device = kCpu) { return memory_stats(device).live_bytes; }

struct Net {
  Tensor x, up, down;
  explicit Net(Device device = kCpu, DType dtype = DType::f32) {
    const auto leaf = [&](const Shape& shape, std::uint64_t seed) {
      return Tensor(test::random(shape, seed, dtype).to(device)).set_requires_grad();
    };
    x = leaf({kRows, 24}, 1);
    up = leaf({kWide, 24}, 2);
    down = leaf({16, kWide}, 3);
  }
  Tensor operator()(bool on) const {
    return use_discarded(
        on, {linear(x, up)}, [](const TensorList& in) { return gelu(in[0]); },
        [this](const Tensor& act) { return linear(act, down); });
  }
  TensorList gradients() const { return {x.grad(), up.grad(), down.grad()}; }
};

struct Result {
  TensorList gradients;
  std::int64_t kept = 0, peak = 0, left = 0;
};

Result run(bool on, Device device = kCpu, DType dtype = DType::f32) {
  const Net net(device, dtype);
  const std::int64_t before = live(device);
  Result r;
  {
    Tape tape;
    const Tensor y = net(on);
    r.kept = live(device) - before;
    reset_peak(device);
    y.backward(Tensor::ones(y.shape(), dtype, device));
    r.peak = memory_stats(device).peak_bytes - before;
  }
  r.gradients = net.gradients();
  r.left = live(device) - before;
  return r;
}

}  // namespace

TEST_CASE("discard: the same gradients, and the output is not kept") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const Result plain = run(false, kCpu, dtype), again = run(true, kCpu, dtype);
    for (int i = 0; i < 3; ++i) CHECK(different_bits(again.gradients[i], plain.gradients[i]) == "");
    const std::int64_t row = static_cast<std::int64_t>(size_of(dtype));
    CHECK(plain.kept - again.kept == size_class_bytes(kRows * kWide * row));
    CHECK(again.left == plain.left);
    const Result planned = run(true, kMeta, dtype);
    CHECK(planned.kept == again.kept);
    CHECK(planned.peak == again.peak);
    CHECK(planned.left == again.left);
  }
}

TEST_CASE("discard: a chain of outputs, each computed from the one before") {
  const auto gradients = [](bool on) {
    const Net net;
    Tape tape;
    DiscardScope first;
    Tensor a = linear(net.x, net.up);
    const Tensor h = a * 1.0;
    a = {};
    Tensor b = tanh(h);
    DiscardScope second;
    Tensor c = sigmoid(b);
    const Tensor y = linear(c, net.down) * sum(b * b);
    if (on) {
      second.discard(std::move(c), {b}, [](const TensorList& in) { return sigmoid(in[0]); });
      CHECK_FALSE(b.storage()->released);
    }
    c = {};
    if (on) first.discard(std::move(b), {h}, [](const TensorList& in) { return tanh(in[0]); });
    y.backward(Tensor::ones(y.shape()));
    return net.gradients();
  };
  const TensorList want = gradients(false), got = gradients(true);
  for (int i = 0; i < 3; ++i) CHECK(different_bits(got[i], want[i]) == "");
}

TEST_CASE("discard: a tensor with another owner stays") {
  const Net net;
  Tape tape;
  Tensor held, view;
  {
    DiscardScope scope;
    Tensor y = gelu(linear(net.x, net.up));
    held = y;
    linear(y, net.down);
    scope.discard(std::move(y), {net.x}, [](const TensorList& in) { return in[0]; });
  }
  CHECK_FALSE(held.storage()->released);
  {
    DiscardScope scope;
    Tensor y = gelu(linear(net.x, net.up));
    view = y.slice(0, 0, 2).detach();
    linear(y, net.down);
    scope.discard(std::move(y), {net.x}, [](const TensorList& in) { return in[0]; });
  }
  CHECK_FALSE(view.storage()->released);
  CHECK(to_vector(view).size() == 2 * kWide);
}

TEST_CASE("discard: nothing is released where nothing is kept") {
  const Net net;
  CHECK(net(true).shape() == Shape{kRows, 16});  // no tape
  const std::int64_t before = live();
  Tape outer, inner;  // two tapes keep two handles of each saved tensor
  const Tensor y = net(true);
  CHECK(live() - before > size_class_bytes(4 * kRows * kWide) * 2);
  const TensorList g = inner.gradients(sum(square(y)), {net.x});
  CHECK(outer.gradients(sum(square(g[0])), {net.up})[0].shape() == net.up.shape());
}

TEST_CASE("discard: inside a recomputed region") {
  const Net plain, again;
  const auto step = [](const Net& net, bool on) {
    Tape tape;
    const Tensor y = on ? recompute([&](const Tensor&) { return net(true); }, net.x) : net(false);
    y.backward(Tensor::ones(y.shape()));
  };
  step(plain, false);
  step(again, true);
  for (const auto& [got, want] : {std::pair(again.up, plain.up), std::pair(again.down, plain.down)})
    CHECK(different_bits(got.grad(), want.grad()) == "");
}

TEST_CASE("discard: errors in backward") {
  const Net net;
  Tape tape;
  const Tensor h = linear(net.x, net.up).detach();
  const auto use = [&](const Tensor& act) { return linear(act, net.down); };
  const Tensor a = use_discarded(
      true, {h}, [](const TensorList& in) { return gelu(in[0]); }, use);
  h.fill_(1);
  CHECK(error_of([&] { tape.gradients(a, {net.down}, Tensor::ones(a.shape())); }) ==
        "linear: saved an input was changed in place (version 1, saved at 0)");
  int calls = 0;
  Tape next;
  const Tensor b = use_discarded(
      true, {h},
      [&calls](const TensorList& in) {
        return calls++ == 0 ? gelu(in[0]) : gelu(in[0].slice(0, 0, 3));
      },
      use);
  CHECK(error_of([&] { next.gradients(b, {net.down}, Tensor::ones(b.shape())); }) ==
        "discard: the second pass must return a new tensor of shape [48, 80], got [3, 80]");
}

TEST_CASE("discard: a warm step calls no operator new") {
  const Net net;
  const auto step = [&] {
    Tape tape;
    const Tensor y = net(true);
    y.backward(Tensor::ones(y.shape()));
  };
  step();
  step();
  const long before = test::news;
  step();
  CHECK(test::news == before);
}

}  // namespace weft::discard_test
