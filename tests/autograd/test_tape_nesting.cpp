// Tapes inside tapes: gradients of gradients, and tapes that end in any order.
#include <doctest/doctest.h>

#include <memory>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/tests/support.h"
#include "weft/tests/tape_support.h"

namespace weft::tape_test {

TEST_CASE("tape: gradients of two leaves do not share memory under an outer tape") {
  const Tensor a = leaf({4}, 1), b = leaf({4}, 2);
  const Tape outer;
  {
    Tape tape;
    sum(a + b).backward();
  }
  CHECK(a.grad().raw() != b.grad().raw());
}

TEST_CASE("tape: a nested tape gives the gradient of a gradient") {
  const Tensor x = leaf({3});
  Tape outer;
  Tensor dx;
  {
    Tape inner;
    dx = grad(sum(x * x * x), {x})[0];
  }
  sum(dx).backward();
  NoGradGuard off;
  CHECK(test::mismatch(x.grad(), x * 6.0, 1e-12) == "");
}

TEST_CASE("tape: an intermediate of the outer tape is an input of the inner one") {
  const Tensor x = leaf({3});
  Tape outer;
  const Tensor y = x * x;
  Tensor dy;
  {
    Tape inner;
    dy = grad(sum(y * y * y), {y})[0];  // 3 y^2 = 3 x^4
  }
  sum(dy).backward();
  NoGradGuard off;
  CHECK(test::mismatch(x.grad(), x * x * x * 12.0, 1e-12) == "");
}

TEST_CASE("tape: a gradient of something independent is 0 at any order") {
  const Tensor x = leaf({3}, 1), z = leaf({2}, 2);
  const Tensor zero = Tensor::zeros({3}, DType::f64);
  {
    Tape tape;
    const TensorList g = tape.gradients(sum(x * 3.0), {x, z});
    CHECK(test::mismatch(g[0], Tensor::full({3}, 3, DType::f64), 0) == "");
    CHECK(test::different_bits(g[1], Tensor::zeros({2}, DType::f64)) == "");
  }
  const auto twice = [&](auto f) {
    Tape outer;
    TensorList first;
    {
      Tape inner;
      first = inner.gradients(f(), {x, z});
    }
    return outer.gradients(sum(first[0] * first[0]) + sum(first[1]), {x, z});
  };
  // The first gradient is constant for a linear function and for a function without z.
  CHECK(test::different_bits(twice([&] { return sum(x * 3.0); })[0], zero) == "");
  CHECK(test::mismatch(twice([&] { return sum(x * x); })[0], x.detach() * 8.0, 1e-12) == "");
  CHECK(test::different_bits(twice([&] { return sum(x * x); })[1],
                             Tensor::zeros({2}, DType::f64)) == "");
  // In this case backward() fills nothing.
  Tape outer;
  Tensor first;
  {
    Tape inner;
    first = inner.gradients(sum(x * 3.0), {x})[0];
  }
  sum(first).backward();
  CHECK(!x.grad().defined());
}

TEST_CASE("tape: an inner tape without leaves refuses backward()") {
  const Tensor x = leaf({2}, 1);
  Tape outer;
  const Tensor a = x * x;
  {
    Tape inner;
    const Tensor y = sum(a * a);
    CHECK(test::error_of([&] { y.backward(); }) ==
          "backward: no op on this tape has used a leaf, so that every gradient would be lost; run "
          "the outer tape, on which they are, or use grad()");
    CHECK(test::mismatch(inner.gradients(y, {a})[0], a.detach() * 2.0, 1e-12) == "");
  }
  sum(a * a).backward();
  CHECK(test::mismatch(x.grad(), pow(x.detach(), 3) * 4.0, 1e-12) == "");
}

TEST_CASE("tape: consecutive tapes inside an outer one") {
  const Tensor x = leaf({3});
  Tape outer;
  const Tensor y = x * x;
  Tape first;
  const Tensor a = grad(sum(y * y), {y})[0];  // 2 x^2; the first inner tape is now spent
  Tape second;
  const Tensor b = grad(sum(y * y * y), {y})[0];  // 3 x^4
  outer.backward(sum(a) + sum(b));
  NoGradGuard off;
  CHECK(test::mismatch(x.grad(), x * 4.0 + x * x * x * 12.0, 1e-12) == "");
}

TEST_CASE("tape: under NoGradGuard the outer tape does not record the inner backward") {
  const Tensor x = leaf({3});
  Tape outer;
  Tape inner;
  const Tensor y = sum(x * x);
  const int before = outer.size();
  {
    NoGradGuard off;
    const Tensor g = inner.gradients(y, {x})[0];
    CHECK_FALSE(g.requires_grad());
    CHECK(test::mismatch(g, x * 2.0, 1e-15) == "");
  }
  CHECK(outer.size() == before);
  CHECK(test::mismatch(outer.gradients(y, {x})[0], x * 2.0, 1e-15) == "");
}

TEST_CASE("tape: tapes may be destroyed in any order") {
  const Tensor x = leaf({3});
  {
    auto first = std::make_unique<Tape>();
    const Tensor y = x * x;
    auto second = std::make_unique<Tape>();
    auto third = std::make_unique<Tape>();
    const Tensor z = sum(y * x);
    first.reset();
    CHECK(Tape::current() == third.get());
    second.reset();
    CHECK(Tape::current() == third.get());
    // The innermost tape has recorded the last two ops and continues to record.
    const TensorList g = third->gradients(z + sum(x), {y, x});
    CHECK(test::mismatch(g[0], x, 0) == "");
    CHECK(test::mismatch(g[1], y + 1.0, 0) == "");
    third.reset();
    CHECK(Tape::current() == nullptr);
    CHECK_FALSE((x * x).requires_grad());
  }
  {
    // The outer tape continues after the middle one is destroyed and is current again at the end.
    Tape outer;
    auto between = std::make_unique<Tape>();
    auto inner = std::make_unique<Tape>();
    const Tensor y = x * x;
    between.reset();
    inner.reset();
    CHECK(Tape::current() == &outer);
    CHECK(test::mismatch(outer.gradients(sum(y), {x})[0], x * 2.0, 0) == "");
  }
  Tape next;
  CHECK(test::mismatch(next.gradients(sum(x * x), {x})[0], x * 2.0, 0) == "");
}

TEST_CASE("tape: a tape destroyed under NoGradGuard is not current afterwards") {
  const Tensor x = leaf({3});
  Tape outer;
  auto inner = std::make_unique<Tape>();
  {
    const NoGradGuard off;
    {
      const NoGradGuard again;
      inner.reset();
    }
    CHECK(Tape::current() == nullptr);
  }
  CHECK(Tape::current() == &outer);
  // Guards on the heap, destroyed in another order.
  auto a = std::make_unique<NoGradGuard>(), b = std::make_unique<NoGradGuard>();
  a.reset();
  CHECK(Tape::current() == nullptr);
  { Tape ended; }
  b.reset();
  CHECK(Tape::current() == &outer);
}

TEST_CASE("tape: a backward hook may destroy another tape") {
  const Tensor x = leaf({3});
  auto outer = std::make_unique<Tape>();
  {
    Tape inner;
    inner.on_grad_ready([&](const Tensor&) { outer.reset(); });
    sum(x * x).backward();
  }
  CHECK(Tape::current() == nullptr);
  CHECK(test::mismatch(x.grad(), x * 2.0, 0) == "");
}

}  // namespace weft::tape_test
