// Weight gradients that backward computes at a place of the recording, later than the op's own
// turn.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "weft/autograd/delayed_gradients.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8_linear.h"
#include "weft/autograd/function.h"
#include "weft/autograd/grouped_linear.h"
#include "weft/autograd/recompute.h"
#include "weft/core/allocator.h"
#include "weft/tests/count_new.h"
#include "weft/tests/support.h"

namespace weft::delayed_gradients_test {
namespace {

using test::different_bits;
using test::error_of;
using test::random;

const Tensor kRows = Tensor::of({16, 0, 32}).to(DType::i64);
constexpr std::int64_t kIn = 32, kOut = 48;

struct Operands {
  Tensor x, up, down, dy;
  explicit Operands(DType t)
      : x(random({48, kIn}, 1, t)),
        up(random({3, kOut, kIn}, 2, t)),
        down(random({3, kIn, kOut}, 3, t)),
        dy(random({48, kIn}, 4, t)) {
    for (Tensor* p : {&x, &up, &down}) p->set_requires_grad();
  }
};

// Notes when backward passes it.
Tensor mark(const Tensor& x, std::string& log, char letter) {
  return custom_function(
      "mark", {x}, [](const TensorList& in) { return in[0].clone(); },
      [&log, letter](const TensorList&, const Tensor&, const Tensor& dy) {
        log += letter;
        return TensorList{dy};
      });
}

using Product = Tensor (*)(const Tensor& x, const Tensor& w, const DelayedGradients& later);
Tensor plain(const Tensor& x, const Tensor& w, const DelayedGradients& later) {
  return grouped_linear(x, w, {}, kRows, {}, later);
}
template <fp8::BackwardOverride kBackward, fp8::Scaling kScaling>
Tensor in_fp8(const Tensor& x, const Tensor& w, const DelayedGradients& later) {
  return fp8_grouped_linear(x, w, kRows, {.scaling = kScaling, .backward = kBackward}, nullptr,
                            later);
}

/// Two products in a row, as in an expert. `log`: when marks and gradients had their turn.
Tensor expert(const Operands& o, Product f, bool delay, std::string& log) {
  const Tensor sent = mark(o.x, log, 's');
  DelayedGradients later;
  if (delay) later = DelayedGradients::here({&o.down, &o.up});
  const Tensor received = mark(sent, log, 'r');
  return f(mark(tanh(f(received, o.up, later)), log, 'a'), o.down, later);
}

struct Result {
  TensorList grads;
  std::string log;
};
Result run(const Operands& o, Product f, bool delay, bool region = false) {
  Result r;
  Tape tape;
  tape.on_grad_ready([&](const Tensor& leaf) {
    r.log += leaf.same(o.up) ? 'U' : leaf.same(o.down) ? 'D' : 'X';
  });
  const Tensor y = region
                       ? recompute([&](const Tensor&) { return expert(o, f, delay, r.log); }, o.x)
                       : expert(o, f, delay, r.log);
  y.backward(o.dy);
  for (const Tensor* p : {&o.x, &o.up, &o.down}) {
    r.grads.push_back(p->grad());
    Tensor(*p).set_grad({});
  }
  return r;
}

}  // namespace

TEST_CASE("delayed gradients: computed at their place, with the same bits") {
  using enum fp8::BackwardOverride;
  using enum fp8::Scaling;
  const Product products[] = {plain, in_fp8<none, current>, in_fp8<none, block>,
                              in_fp8<high_precision, current>, in_fp8<dequantized, current>};
  for (const DType t : {DType::f32, DType::bf16})
    for (const Product f : products) {
      const Operands o(t);
      const Result now = run(o, f, false), later = run(o, f, true);
      CHECK(now.log == "DaUrsX");
      CHECK(later.log == "arDUsX");
      for (int i = 0; i < 3; ++i) CHECK(different_bits(now.grads[i], later.grads[i]) == "");
    }
}

TEST_CASE("delayed gradients: add to main_grad() and to a gradient of an earlier pass") {
  for (const bool main : {false, true}) {
    TensorList sums[2];
    for (const bool delay : {false, true}) {
      const Operands o(DType::bf16);
      if (main)
        for (Tensor p : {o.up, o.down}) p.set_main_grad(Tensor::full(p.shape(), 0.5));
      for (int pass = 0; pass < 2; ++pass) {
        std::string log;
        Tape tape;
        expert(o, plain, delay, log).backward(o.dy);
      }
      for (const Tensor& p : {o.up, o.down}) sums[delay].push_back(main ? p.main_grad() : p.grad());
    }
    for (int i = 0; i < 2; ++i) CHECK(different_bits(sums[0][i], sums[1][i]) == "");
  }
}

TEST_CASE("delayed gradients: inside a recomputed region") {
  const Operands o(DType::f64);
  const Result now = run(o, plain, false, true), later = run(o, plain, true, true);
  CHECK(now.log == "DaUrsX");
  CHECK(later.log == "arDUsX");
  for (int i = 0; i < 3; ++i) CHECK(different_bits(now.grads[i], later.grads[i]) == "");
}

TEST_CASE(
    "delayed gradients: only of the weights of the place, and only if the loss depends on them") {
  Operands o(DType::f64);
  std::string log;
  Tape tape;
  tape.on_grad_ready([&](const Tensor& leaf) { log += leaf.same(o.up) ? 'U' : 'D'; });
  o.x.set_requires_grad(false);
  const auto later = DelayedGradients::here({&o.down});
  const Tensor y = plain(mark(plain(o.x, o.up, later), log, 'a'), o.down, later);
  CHECK(tape.print().starts_with("delayed_gradients []  saves 0 bytes\n"));
  y.backward(o.dy);
  CHECK(log == "aUD");
  {
    Tape other;
    const auto unused = DelayedGradients::here({&o.down});
    const Tensor z = plain(o.x, o.up, unused);
    z.backward(z.detach());  // the place comes, and has nothing to do
  }
  const Tensor constant = o.up.detach();
  {
    Tape none;
    (void)DelayedGradients::here({&constant});  // no gradient: no place
    CHECK(none.size() == 0);
  }
  const TensorList five(std::vector<Tensor>(5, o.up));
  CHECK(error_of([&] { (void)DelayedGradients::here(five); }) ==
        "delayed gradients: at most 4 weights, got 5");
  Tape again;
  const auto busy = DelayedGradients::here({&o.up});
  Tensor sum = plain(o.x, o.up, busy);
  for (int i = 0; i < 4; ++i) sum = add(sum, plain(o.x, o.up, busy));
  CHECK(error_of([&] { sum.backward(sum.detach()); }) ==
        "delayed gradients: the weights of a place are used 4 times at most, got one more");
}

TEST_CASE("delayed gradients: an error in backward before the place keeps no operand alive") {
  const Operands o(DType::f32);
  const std::int64_t before = memory_stats().live_bytes;
  for (int pass = 0; pass < 2; ++pass) {
    Tape tape;
    const auto later = DelayedGradients::here({&o.up});
    const Tensor received = custom_function(
        "receive", {o.x}, [](const TensorList& in) { return in[0].clone(); },
        [](const TensorList&, const Tensor&, const Tensor&) -> TensorList {
          throw Error("receive: a rank is lost");
        });
    const Tensor y = plain(received, o.up, later);
    CHECK(error_of([&] { y.backward(y.detach()); }) == "receive: a rank is lost");
  }
  CHECK(memory_stats().live_bytes == before);
}

TEST_CASE("delayed gradients: a warm pass allocates nothing") {
  const Operands o(DType::f32);
  const auto pass = [&] {
    Tape tape;
    const auto later = DelayedGradients::here({&o.up});
    const Tensor y = plain(o.x, o.up, later);
    return tape.gradients(y, {o.up}, y.detach());
  };
  for (int i = 0; i < 3; ++i) (void)pass();
  CHECK(test::heap_use([&] { (void)pass(); }).news == 0);
}

}  // namespace weft::delayed_gradients_test
