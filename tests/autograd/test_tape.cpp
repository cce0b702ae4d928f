// A tape: what it records, and the gradients that it gives to leaves. Tapes inside tapes are in
// test_tape_nesting.cpp.
#include <doctest/doctest.h>

#include <string>
#include <thread>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/core/allocator.h"
#include "weft/tests/support.h"
#include "weft/tests/tape_support.h"

namespace weft::tape_test {

namespace {

// An op with two outputs, x * 2 and x * 3, either of which may stay unused.
TensorList two_outputs(const Tensor& x) {
  Tensor a, b;
  {
    NoGradGuard off;
    a = x * 2;
    b = x * 3;
  }
  if (recording(x))
    Tape::record("two_outputs", {&x}, {&a, &b}, [](Backward& back) {
      if (back.dy(0).defined()) back.add(0, back.dy(0) * 2);
      if (back.dy(1).defined()) back.add(0, back.dy(1) * 3);
    });
  return {a, b};
}

}  // namespace

TEST_CASE("tape: nothing is recorded outside a tape") {
  const Tensor x = leaf({3});
  const Tensor y = x * x;
  CHECK_FALSE(y.requires_grad());
  CHECK(test::error_of([&] { sum(y).backward(); }) ==
        "backward: no tape is recording; declare weft::Tape before the forward pass");
}

TEST_CASE("tape: backward fills leaves and adds up over tapes") {
  const Tensor x = leaf({3});
  for (int pass = 1; pass <= 2; ++pass) {
    Tape tape;
    sum(x * x * x).backward();
    CHECK(test::mismatch(x.grad(), x * x * 3.0 * static_cast<double>(pass), 1e-12) == "");
  }
}

TEST_CASE("tape: an input used twice gets both contributions") {
  const Tensor x = leaf({4});
  Tape tape;
  const Tensor y = x * x + x;
  sum(y * x).backward();
  NoGradGuard off;
  CHECK(test::mismatch(x.grad(), x * x * 3.0 + x * 2.0, 1e-12) == "");
}

TEST_CASE("tape: gradients of two leaves never share memory") {
  const Tensor a = leaf({4}, 1), b = leaf({4}, 2);
  Tape tape;
  sum(a + b).backward();
  REQUIRE(a.grad().defined());
  REQUIRE(b.grad().defined());
  CHECK(a.grad().raw() != b.grad().raw());
  a.grad().mul_(5);
  CHECK(test::mismatch(b.grad(), Tensor::ones({4}, DType::f64), 0) == "");
}

TEST_CASE("tape: an op with several outputs may have unused ones") {
  for (int used = 0; used < 3; ++used) {
    CAPTURE(used);
    const Tensor x = leaf({2});
    Tape tape;
    const TensorList y = two_outputs(x);
    const Tensor z = used == 0 ? y[0] : used == 1 ? y[1] : y[0] + y[1];
    sum(z).backward();
    const double want = used == 0 ? 2 : used == 1 ? 3 : 5;
    CHECK(test::mismatch(x.grad(), Tensor::full({2}, want, DType::f64), 0) == "");
  }
}

TEST_CASE("tape: grad() returns gradients and leaves grad() of the leaves unset") {
  const Tensor x = leaf({3}), other = leaf({2});
  Tape tape;
  const Tensor mid = x * x;
  const Tensor y = sum(mid * mid);
  const TensorList g = grad(y, {x, mid, other});
  NoGradGuard off;
  CHECK(test::mismatch(g[0], x * x * x * 4.0, 1e-12) == "");
  CHECK(test::mismatch(g[1], x * x * 2.0, 1e-12) == "");
  CHECK(test::different_bits(g[2], Tensor::zeros({2}, DType::f64)) == "");
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("tape: hooks report each leaf's last gradient and the unused leaves") {
  const Tensor a = leaf({2}, 1), b = leaf({2}, 2), unused = leaf({2}, 3);
  Tape tape;
  std::vector<const TensorImpl*> ready;
  std::vector<Tensor> left;
  tape.on_grad_ready([&](const Tensor& x) {
    CHECK(x.grad().defined());
    ready.push_back(x.impl());
  });
  tape.on_backward_end([&](const std::vector<Tensor>& l) { left = l; });
  const Tensor dead = unused * 2.0;
  const Tensor y = exp(a);  // a is used twice: its last gradient comes from here
  sum(y * b * a).backward();
  REQUIRE(ready.size() == 2);
  CHECK(ready[0] == b.impl());
  CHECK(ready[1] == a.impl());
  REQUIRE(left.size() == 1);
  CHECK(left[0].same(unused));
  CHECK(dead.requires_grad());
}

TEST_CASE("tape: main_grad replaces grad") {
  const Tensor x = Tensor(leaf({3}).to(DType::bf16)).set_requires_grad();
  x.set_main_grad(Tensor::full({3}, 10, DType::f32));
  Tape tape;
  sum(x * 2.0).backward();
  CHECK_FALSE(x.grad().defined());
  CHECK(test::mismatch(x.main_grad(), Tensor::full({3}, 12), 0) == "");
}

TEST_CASE("tape: saved tensors must not change") {
  const Tensor x = leaf({3});
  Tape tape;
  const Tensor y = sum(x * x);
  {
    NoGradGuard off;
    x.add_(Tensor::ones({3}, DType::f64));
  }
  CHECK(test::error_of([&] { y.backward(); }) ==
        "mul: saved a was changed in place (version 2, saved at 1)");
}

TEST_CASE("tape: in-place ops refuse recorded tensors") {
  const Tensor x = leaf({3});
  Tape tape;
  CHECK(test::error_of([&] { x.zero_(); }) ==
        "fill_: cannot change a tensor that is part of a recording; use the out-of-place op, or a "
        "NoGradGuard, got shape [3]");
}

TEST_CASE("tape: errors say what is missing") {
  const Tensor x = leaf({3}), plain = test::random({3});
  {
    Tape tape;
    const Tensor y = x * x;
    CHECK(test::error_of([&] { y.backward(); }) ==
          "backward: loss must have 1 element or come with dy, got shape [3]");
    CHECK(test::error_of([&] {
            grad(sum(y), {x, Tensor()});
          }) ==
          "grad: every x must require a gradient and be part of the recording, got a null tensor");
    sum(y).backward();  // a refused call changes nothing
    CHECK(test::mismatch(x.grad(), x.detach() * 2.0, 1e-12) == "");
  }
  {
    Tape tape;
    CHECK(test::error_of([&] { sum(plain).backward(); }) ==
          "backward: the loss is not on this tape; no input of it required a gradient, or it was "
          "computed before the tape was opened");
  }
  {
    Tape tape;
    const Tensor y = sum(x * x);
    y.backward();
    CHECK(test::error_of([&] { y.backward(); }) ==
          "backward: this tape is spent; open a new weft::Tape and run the forward pass again");
  }
  Tape tape;
  CHECK(test::error_of([&] { grad(sum(x), {plain}); }) ==
        "grad: every x must require a gradient and be part of the recording, got [3]");
}

TEST_CASE("tape: a hook that calls grad() is refused and every leaf still gets its gradient") {
  const Tensor a = leaf({3}, 1), b = leaf({3}, 2);
  Tape tape;
  std::string refused;
  tape.on_grad_ready([&](const Tensor& x) { refused = test::error_of([&] { grad(x, {x}); }); });
  sum((b * 2.0) * (a * 3.0)).backward();
  CHECK(refused == "grad: this tape is already running");
  CHECK(test::mismatch(a.grad(), b.detach() * 6.0, 1e-12) == "");
  CHECK(test::mismatch(b.grad(), a.detach() * 6.0, 1e-12) == "");
}

TEST_CASE("tape: a leaf recorded on another thread is an ordinary leaf here") {
  const Tensor w = leaf({1});
  {
    Tape tape;
    Tensor y = w * 1.0;
    for (int i = 0; i < 20; ++i) y = y * 1.0;
    sum(y * w).backward();  // w now has an index from this thread
  }
  Tensor stale;
  {
    Tape tape;
    stale = w * 2.0;
  }
  std::string wrong;
  std::thread([&] {
    w.set_grad({});
    Tape tape;
    Tensor y = w * 2.0;
    for (int i = 0; i < 60; ++i) y = y * 1.0;  // exceeds every index that the other thread assigned
    sum(y * y + stale * 3.0).backward();
    wrong = test::mismatch(w.grad(), w.detach() * 8.0, 1e-12);
  }).join();
  CHECK(wrong == "");
}

TEST_CASE("tape: a tensor of a finished tape is a constant for the next") {
  const Tensor x = leaf({3});
  Tensor y;
  {
    Tape tape;
    y = x * 2.0;
  }
  Tape tape;
  sum(y * x).backward();
  CHECK(test::mismatch(x.grad(), y.detach(), 1e-12) == "");
}

TEST_CASE("tape: NoGradGuard stops recording for its scope") {
  const Tensor x = leaf({3});
  Tape tape;
  {
    NoGradGuard off;
    CHECK_FALSE((x * x).requires_grad());
  }
  CHECK((x * x).requires_grad());
  CHECK(tape.size() == 1);
}

TEST_CASE("tape: print lists ops in order with the bytes they save") {
  const Tensor x = leaf({16});
  Tape tape;
  const Tensor y = sum(x * x);
  CHECK(tape.print() == "mul [16]  saves 256 bytes\nsum []  saves 0 bytes\n");
  CHECK(tape.leaves().size() == 1);
  Tape inner;
  const Tensor z = x * x;
  CHECK(inner.print() == "mul [16]  saves 256 bytes\n");
  CHECK(tape.print().ends_with(inner.print()));  // both keep the same tensors alive
}

TEST_CASE("tape: saved tensors are freed after their node has run") {
  const std::int64_t before = memory_stats().live_bytes;
  const Tensor x = leaf({1 << 16});
  const std::int64_t one = memory_stats().live_bytes - before;
  {
    Tape tape;
    Tensor y = x;
    for (int i = 0; i < 8; ++i) y = y * y;
    CHECK(memory_stats().live_bytes - before >= 9 * one);
    y = sum(y);
    y.backward();
    CHECK(memory_stats().live_bytes - before < 3 * one);
  }
}

}  // namespace weft::tape_test
