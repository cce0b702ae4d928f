#include <doctest/doctest.h>

#include <functional>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/reduce.h"
#include "weft/tests/support.h"

namespace weft::recompute_test {

namespace {

struct Result {
  Tensor dx, dw, y;
  std::int64_t kept = 0;
};

// tanh(tanh(x * w) * w) + x, with the middle recomputed or not. The region captures w.
Result run(bool again, int depth) {
  const Tensor x = Tensor(test::random({64, 64}, 1)).set_requires_grad();
  const Tensor w = Tensor(test::random({64, 64}, 2)).set_requires_grad();
  const std::int64_t before = memory_stats().live_bytes;
  Tape tape;
  int ready = 0;
  tape.on_grad_ready([&](const Tensor&) { ++ready; });
  const auto layer = [&w](const Tensor& h) { return tanh(tanh(h * w) * w); };
  Tensor h = x * 1.0;
  for (int i = 0; i < depth; ++i) h = again ? recompute(layer, h) : layer(h);
  const Tensor y = sum(square(h + x));
  Result r;
  r.kept = memory_stats().live_bytes - before;
  y.backward();
  CHECK(ready == 2);
  r.dx = x.grad();
  r.dw = w.grad();
  r.y = y.detach();
  return r;
}

}  // namespace

TEST_CASE("recompute: gives the same bits with less memory") {
  for (int depth : {1, 3}) {
    CAPTURE(depth);
    const Result plain = run(false, depth), again = run(true, depth);
    CHECK(test::different_bits(plain.y, again.y) == "");
    CHECK(test::different_bits(plain.dx, again.dx) == "");
    CHECK(test::different_bits(plain.dw, again.dw) == "");
    CHECK(again.kept < plain.kept);
  }
}

TEST_CASE("recompute: nested regions and several inputs match finite differences") {
  const auto f = [](const TensorList& in) {
    const Tensor w = in[1];
    return recompute(
        [](const TensorList& xs) {
          const Tensor inner = recompute([](const Tensor& h) { return tanh(h * h); }, xs[0]);
          return TensorList{inner * xs[1] + xs[0], exp(xs[1])};
        },
        TensorList{in[0], w})[0];
  };
  CHECK(gradcheck(f, {test::random({3, 2}, 1), test::random({3, 2}, 2)}) == "");
}

TEST_CASE("recompute: both outputs of a region may be used") {
  const auto f = [](const TensorList& in) {
    const TensorList y = recompute(
        [](const TensorList& xs) {
          return TensorList{xs[0] * xs[0], tanh(xs[0])};
        },
        TensorList{in[0]});
    return y[0] * y[1];
  };
  CHECK(gradcheck(f, {test::random({4}, 3)}) == "");
}

TEST_CASE("recompute: a region may return its input or a captured tensor") {
  using Region = std::function<TensorList(const TensorList&)>;
  const auto gradients = [](int which, bool is_leaf, bool again) {
    const Tensor x = Tensor(test::random({5}, 1)).set_requires_grad();
    const Tensor w = Tensor(test::random({5}, 2)).set_requires_grad();
    Tape tape;
    int ready = 0;
    tape.on_grad_ready([&](const Tensor&) { ++ready; });
    const Tensor outside = tanh(w);
    const Region regions[] = {
        [](const TensorList& in) {
          return TensorList{in[0], in[0]};
        },
        [&](const TensorList& in) {
          return TensorList{in[0] * 2.0, w};
        },
        [&](const TensorList& in) {
          return TensorList{in[0] * w, outside};
        },
        [&](const TensorList& in) {
          const auto inner = [&](const TensorList& xs) { return TensorList{xs[0], w}; };
          return again ? recompute(inner, in) : inner(in);
        },
    };
    const Region& region = regions[which];
    const TensorList in{is_leaf ? x : x * 2.0};
    const TensorList y = again ? recompute(region, in) : region(in);
    sum(y[0] * y[1] + y[1] + outside).backward();
    CHECK(ready == 2);
    return TensorList{x.grad(), w.grad()};
  };
  for (const int which : {0, 1, 2, 3})
    for (const bool is_leaf : {false, true}) {
      CAPTURE(which);
      CAPTURE(is_leaf);
      const TensorList plain = gradients(which, is_leaf, false);
      const TensorList again = gradients(which, is_leaf, true);
      for (const int i : {0, 1}) {
        REQUIRE(again[i].defined());
        CHECK(test::mismatch(again[i], plain[i], 1e-15) == "");
      }
    }
}

TEST_CASE("recompute: too many inputs and an input changed in place are refused") {
  const Tensor x = Tensor(test::random({3})).set_requires_grad();
  Tape tape;
  const auto first = [](const TensorList& in) { return TensorList{in[0] * 2.0}; };
  CHECK(test::error_of([&] {
          recompute(first, TensorList{x, x, x, x, x, x});
        }) == "recompute: at most 5 inputs, got 6");
  const Tensor constant = test::random({3}, 2);
  const Tensor y = recompute([](const TensorList& in) { return TensorList{in[0] * in[1]}; },
                             TensorList{x, constant})[0];
  constant.zero_();
  CHECK(test::error_of([&] { sum(y).backward(); }) ==
        "recompute: saved an input was changed in place (version 2, saved at 1)");
}

TEST_CASE("recompute: the second pass draws the same random numbers and recomputing() is true") {
  const Tensor x = Tensor::ones({1000}, DType::f64).set_requires_grad();
  int passes = 0, replays = 0;
  Tensor mask;
  const auto noisy = [&](const Tensor& h) {
    ++passes;
    replays += recomputing();
    const Tensor m = rand_uniform(h.shape(), 0, 1, DType::f64);
    if (!recomputing()) mask = m;
    return h * m;
  };
  manual_seed(5);
  Tensor after;
  {
    Tape tape;
    const Tensor y = recompute(noisy, x);
    after = rand_uniform({4});
    sum(y).backward();
  }
  CHECK(passes == 2);
  CHECK(replays == 1);
  CHECK(test::different_bits(x.grad(), mask) == "");
  // The second pass does not move the running counter: the next draw is new.
  const Tensor next = rand_uniform({4});
  CHECK(test::different_bits(next, after) != "");
  manual_seed(5);
  rand_uniform({1000}, 0, 1, DType::f64);
  CHECK(test::different_bits(rand_uniform({4}), after) == "");
  CHECK(test::different_bits(rand_uniform({4}), next) == "");
}

TEST_CASE("recompute: a region without a gradient path leaves its leaves untouched") {
  const Tensor x = Tensor(test::random({3}, 1)).set_requires_grad();
  const Tensor w = Tensor(test::random({3}, 2)).set_requires_grad();
  const auto constant = [&w](const Tensor& h) {
    return recompute([&w](const Tensor& v) { return v * w; }, h).detach();
  };
  const auto failing = [&w](const Tensor& h) -> Tensor {
    const Tensor used = h * w;
    throw Error("no");
  };
  Tape tape;
  const Tensor c = recompute(constant, x);
  CHECK(test::error_of([&] { recompute(failing, x); }) == "no");
  sum(c * w).backward();
  REQUIRE(w.grad().defined());
  CHECK(test::mismatch(w.grad(), c, 1e-12) == "");
}

TEST_CASE("recompute: the second pass gets the values of the first in order") {
  double count = 0;
  int calls = 0;
  const auto counted = [&] {
    return first_pass_value([&] {
      ++calls;
      return Tensor::full({}, ++count, DType::f64);
    });
  };
  const auto twice = [&](const Tensor& v) {
    const Tensor a = counted(), b = counted();
    return v * a * a * b;
  };
  // Outside of regions it is a plain call.
  CHECK(counted().item() == 1);
  for (const bool nested : {false, true}) {
    count = calls = 0;
    const Tensor x = Tensor(test::random({3}, 1)).set_requires_grad();
    const auto region = [&](const Tensor& v) {
      if (!nested) return recompute(twice, v);
      const auto outer = [&](const Tensor& w) {
        const Tensor inner = recompute(twice, w);
        return inner * counted();
      };
      return recompute(outer, v);
    };
    Tape tape;
    const Tensor first = region(x), second = region(x);
    const double want = nested ? 1 * 1 * 2 * 3 + 4 * 4 * 5 * 6 : 1 * 1 * 2 + 3 * 3 * 4;
    CHECK(test::mismatch(first + second, x.detach() * want, 1e-15) == "");
    sum(first + second).backward();
    CHECK(test::mismatch(x.grad(), Tensor::full({3}, want, DType::f64), 1e-15) == "");
    CHECK(calls == (nested ? 6 : 4));
  }
  const Tensor x = Tensor(test::random({3}, 1)).set_requires_grad();
  Tape tape;
  const auto many = [&](const Tensor& v) {
    for (int i = 0; i < 9; ++i) counted();
    return v * v;
  };
  CHECK(test::error_of([&] { recompute(many, x); }) ==
        "recompute: at most 8 values may be kept for the second pass of a region");
  int asked = 0;
  const Tensor y = recompute(
      [&](const Tensor& v) {
        for (int i = 0; i <= asked; ++i) counted();
        ++asked;
        return v * v;
      },
      x);
  CHECK(test::error_of([&] { sum(y).backward(); }) ==
        "recompute: the second pass asks for more values than the first, which had 1");
}

TEST_CASE("recompute: a region that the loss does not reach does not delay gradients") {
  const Tensor w = Tensor(test::random({3}, 2)).set_requires_grad();
  const auto times_w = [&w](const Tensor& v) { return v * w; };
  for (const bool nested : {false, true}) {
    w.set_grad({});
    const Tensor x = Tensor(test::random({3}, 1)).set_requires_grad();
    const auto region = [&](const Tensor& v) {
      const Tensor idle = recompute(times_w, v);
      return v * w + idle.detach() * 0;
    };
    int ready = 0;
    Tape tape;
    tape.on_grad_ready([&](const Tensor&) { ++ready; });
    const Tensor y = nested ? recompute(region, x) : region(x);
    sum(y).backward();
    REQUIRE(w.grad().defined());
    CHECK(test::mismatch(w.grad(), x.detach(), 1e-15) == "");
    CHECK(ready == 2);
  }
}

TEST_CASE("recompute: without a tape it is a plain call") {
  int passes = 0;
  const Tensor y = recompute([&](const Tensor& x) { return ++passes, x * 2.0; }, test::random({3}));
  CHECK(passes == 1);
  CHECK_FALSE(y.requires_grad());
}

TEST_CASE("recompute: a region inside two tapes is refused") {
  const Tensor x = Tensor(test::random({3})).set_requires_grad();
  Tape outer;
  Tape inner;
  CHECK(test::error_of([&] { recompute([](const Tensor& h) { return h * 2.0; }, x); }) ==
        "recompute: a recomputed region can be differentiated only once; one tape may record, got "
        "a tape inside another");
}

TEST_CASE("recompute: a null output is refused and a null input is passed on") {
  const Tensor x = Tensor(test::random({3})).set_requires_grad();
  const auto hand_on = [](const Tensor& in) { return in; };
  const auto with_null = [](const TensorList& in) { return TensorList{in[0] * 2.0, Tensor()}; };
  const auto refused = [&] {
    CHECK(test::error_of([&] { recompute(hand_on, Tensor()); }) ==
          "recompute: output 0 must be a tensor, got a null handle");
    CHECK(test::error_of([&] { recompute(with_null, TensorList{x}); }) ==
          "recompute: output 1 must be a tensor, got a null handle");
  };
  refused();
  Tape tape;
  refused();
  const auto optional_bias = [](const TensorList& in) {
    return TensorList{in[1].defined() ? in[0] + in[1] : in[0] * 3.0};
  };
  sum(recompute(optional_bias, TensorList{x, {}})[0]).backward();
  CHECK(test::mismatch(x.grad(), Tensor::full({3}, 3, DType::f64), 0) == "");
}

TEST_CASE("recompute: a second pass with another number of outputs is refused") {
  const Tensor x = Tensor(test::random({3})).set_requires_grad();
  Tape tape;
  const TensorList ys = recompute(
      [](const TensorList& in) {
        TensorList out{in[0] * 2.0};
        if (recomputing()) out.push_back(in[0] * 3.0);
        return out;
      },
      TensorList{x});
  CHECK(test::error_of([&] { sum(ys[0]).backward(); }) ==
        "recompute: the second pass must return as many tensors as the first, 1, got 2");
}

}  // namespace weft::recompute_test
