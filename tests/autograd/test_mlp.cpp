#include <doctest/doctest.h>

#include <cmath>
#include <span>

#include "weft/autograd/linear.h"
#include "weft/autograd/mlp.h"
#include "weft/core/allocator.h"
#include "weft/core/parallel.h"
#include "weft/tests/activation_support.h"
#include "weft/tests/support.h"

namespace weft::mlp_test {

namespace {

struct Case {
  Shape x;
  std::int64_t hidden, out;
};

// In: x, up, up_bias, down, down_bias. Weights of size 1 / sqrt(inputs), as in a model, keep sums
// near 1.
TensorList inputs(const Case& c, Activation a, DType t = DType::f64) {
  const std::int64_t width = test::hidden_width(a, c.hidden);
  const auto weight = [&](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    return mul(test::random({rows, cols}, seed), 1 / std::sqrt(static_cast<double>(cols) + 1))
        .to(t);
  };
  // Squares magnify what is larger.
  const double size = a == Activation::relu2 ? 0.5 : 1;
  return {mul(test::random(c.x, 1), size).to(t), weight(width, c.x.back(), 2),
          mul(test::random({width}, 3), size).to(t), weight(c.out, c.hidden, 4),
          test::random({c.out}, 5, t)};
}

// A cotangent of y that also keeps sums over its rows near 1.
Tensor cotangent(const Case& c, DType t = DType::f64) {
  Shape shape = c.x;
  shape[shape.size() - 1] = c.out;
  const auto rows = static_cast<double>(shape.numel() / std::max<std::int64_t>(c.out, 1));
  return mul(test::random(shape, 9), 1 / std::sqrt(rows + 1)).to(t);
}

Tensor op(const TensorList& in, const MlpOptions& o) {
  return mlp(in[0], in[1], in[2], in[3], in[4], o);
}

// From public ops, in f64.
Tensor composed(const TensorList& in, Activation a) {
  TensorList wide;
  for (const Tensor& t : in) wide.push_back(t.defined() ? t.to(DType::f64) : t);
  const Tensor h = linear(wide[0], wide[1], wide[2]);
  return linear(test::activation_by_parts(h, a), wide[3], wide[4]);
}

TensorList with_gradients(const TensorList& in, const Tensor& dy, const MlpOptions& o) {
  Tape tape;
  TensorList leaves;
  for (const Tensor& t : in) leaves.push_back(t.detach().set_requires_grad());
  const Tensor y = op(leaves, o);
  TensorList out = tape.gradients(y, leaves, dy);
  out.push_back(y);
  return out;
}

TensorList want_of(const TensorList& in, const Tensor& dy, Activation a) {
  Tape tape;
  TensorList leaves;
  for (const Tensor& t : in) leaves.push_back(t.to(DType::f64).detach().set_requires_grad());
  const Tensor y = composed(leaves, a);
  TensorList out = tape.gradients(y, leaves, dy.to(DType::f64));
  out.push_back(y);
  return out;
}

// One row, odd sizes, three axes, no rows, no inputs, no outputs.
const Case kCases[] = {{{1, 1}, 1, 1}, {{5}, 3, 2},    {{3, 5}, 7, 4}, {{2, 3, 5}, 4, 6},
                       {{0, 4}, 3, 2}, {{3, 0}, 2, 3}, {{3, 2}, 4, 0}};
// Narrow and wide rows, and more columns and rows than one tile of the backward pass.
const Case kLarge[] = {{{130, 20}, 530, 9}, {{70, 300}, 33, 40}, {{2000, 3}, 17, 2}};

}  // namespace

TEST_CASE("mlp: gradients match finite differences twice") {
  for (const Activation a : test::kEveryActivation)
    for (const Case& c : kCases)
      for (const bool recompute : {false, true}) {
        CAPTURE(message("{}, x {}", row_of(a).word, c.x));
        const MlpOptions o{.activation = a, .recompute = recompute};
        const TensorList in = inputs(c, a);
        CHECK(gradcheck([&](const TensorList& t) { return op(t, o); }, in) == "");
        if (a != Activation::swiglu)  // its backward is a fused kernel
          CHECK(gradcheck([&](const TensorList& t) { return op(t, o); }, in,
                          {.second_order = true}) == "");
        CHECK(gradcheck([&](const TensorList& t) { return mlp(t[0], t[1], {}, t[2], {}, o); },
                        {in[0], in[1], in[3]}) == "");
      }
}

TEST_CASE("mlp: values and gradients in every dtype equal separate ops in f64") {
  for (const Activation a : test::kEveryActivation)
    for (const auto& cases : {std::span<const Case>(kCases), std::span<const Case>(kLarge)})
      for (const Case& c : cases)
        for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16})
          for (const bool recompute : {false, true}) {
            CAPTURE(message("{}, x {}, {}", row_of(a).word, c.x, t));
            const TensorList in = inputs(c, a, t);
            const Tensor dy = cotangent(c, t);
            const TensorList got = with_gradients(in, dy, {a, recompute});
            const TensorList want = want_of(in, dy, a);
            for (int i = 0; i < got.size(); ++i) {
              CAPTURE(i);
              CHECK(got[i].dtype() == t);
              // Three consecutive sums, each rounded in bf16; one rounding is 4e-3.
              CHECK(test::mismatch(got[i], want[i], 2 * test::tolerance(t)) == "");
            }
          }
}

TEST_CASE("mlp: strided operands and one operand used twice") {
  for (const Activation a : test::kEveryActivation) {
    TensorList in = inputs({{3, 5}, 7, 4}, a), gaps;
    for (const Tensor& t : in) gaps.push_back(test::strided(t));
    CHECK(test::mismatch(op(gaps, {.activation = a}), composed(in, a), 1e-12) == "");
    CHECK(gradcheck([&](const TensorList& t) { return op(t, {.activation = a}); }, gaps) == "");
  }
  CHECK(gradcheck([](const TensorList& t) { return mlp(t[0], t[0], {}, t[0], {}); },
                  {test::random({4, 4}, 1)}, {.second_order = true}) == "");
}

TEST_CASE("mlp: the number of threads and recomputing change no bit") {
  const test::RestoreThreads restore;
  set_deterministic(true);
  for (const Activation a : test::kEveryActivation)
    for (const Case& c : kLarge) {
      const TensorList in = inputs(c, a, DType::f32);
      const Tensor dy = cotangent(c, DType::f32);
      set_num_threads(1);
      const TensorList want = with_gradients(in, dy, {a, false});
      for (const int t : {1, 2, 5})
        for (const bool recompute : {false, true}) {
          set_num_threads(t);
          const TensorList got = with_gradients(in, dy, {a, recompute});
          for (int i = 0; i < got.size(); ++i) CHECK(test::different_bits(got[i], want[i]) == "");
        }
    }
}

TEST_CASE("mlp: only the required gradients are computed") {
  for (int wanted = 0; wanted < 5; ++wanted)
    for (const bool recompute : {false, true}) {
      CAPTURE(wanted);
      const TensorList in = inputs({{3, 5}, 7, 4}, Activation::gelu_tanh);
      const Tensor dy = test::random({3, 4}, 9);
      const TensorList all = with_gradients(in, dy, {.recompute = recompute});
      TensorList leaves;
      for (int i = 0; i < 5; ++i) leaves.push_back(in[i].detach());
      leaves[wanted].set_requires_grad();
      Tape tape;
      op(leaves, {.recompute = recompute}).backward(dy);
      for (int i = 0; i < 5; ++i) CHECK(leaves[i].grad().defined() == (i == wanted));
      CHECK(test::mismatch(leaves[wanted].grad(), all[wanted], 1e-12) == "");
    }
}

TEST_CASE("mlp: bf16 gradients of weights and biases go into f32 sums") {
  const Case c{{6, 8}, 16, 8};
  const TensorList in = inputs(c, Activation::gelu_tanh, DType::bf16);
  const Tensor dy = cotangent(c, DType::bf16);
  TensorList leaves;
  for (const Tensor& t : in) {
    leaves.push_back(t.detach().set_requires_grad());
    leaves[leaves.size() - 1].set_main_grad(Tensor::ones(t.shape(), DType::f32));
  }
  Tape tape;
  op(leaves, {}).backward(dy);
  const TensorList want = want_of(in, dy, Activation::gelu_tanh);
  for (int i = 0; i < 5; ++i) {
    CHECK_FALSE(leaves[i].grad().defined());
    CHECK(test::mismatch(leaves[i].main_grad(), add(want[i], 1), test::tolerance(DType::bf16)) ==
          "");
  }
}

TEST_CASE("mlp: two tapes have separate saved tensors") {
  for (const Activation a : test::kEveryActivation)
    for (const bool recompute : {false, true}) {
      TensorList in = inputs({{3, 5}, 7, 4}, a), leaves;
      const Tensor dy = test::random({3, 4}, 9);
      const TensorList want = with_gradients(in, dy, {a, recompute});
      for (const Tensor& t : in) leaves.push_back(t.detach().set_requires_grad());
      Tape outer;
      Tensor y;
      {
        Tape inner;
        y = op(leaves, {a, recompute});
        const NoGradGuard unheard;  // the inner pass must not consume what the outer tape needs
        inner.gradients(y, leaves, dy);
      }
      const TensorList got = outer.gradients(y, leaves, dy);
      for (int i = 0; i < 5; ++i) CHECK(test::mismatch(got[i], want[i], 1e-12) == "");
    }
}

TEST_CASE("mlp: bytes saved for backward with and without recompute") {
  const Case c{{64, 16}, 64, 16};
  for (const Activation a : test::kEveryActivation) {
    const std::int64_t wide = is_gated(a) ? 2 : 1;
    const std::int64_t row = 64 * 64 * 8;
    const auto kept = [&](const MlpOptions& o) {
      TensorList leaves;
      for (const Tensor& t : inputs(c, a)) leaves.push_back(t.detach().set_requires_grad());
      const std::int64_t before = memory_stats().live_bytes;
      Tape tape;
      const Tensor y = op(leaves, o);
      return memory_stats().live_bytes - before - y.numel() * 8;
    };
    CHECK(kept({.activation = a}) == (wide + 1) * row);
    CHECK(kept({.activation = a, .recompute = true}) == wide * row);
  }
}

TEST_CASE("mlp: a weight changed before backward is an error") {
  TensorList in = inputs({{3, 5}, 7, 4}, Activation::gelu_tanh);
  in[0].set_requires_grad();
  Tape tape;
  const Tensor y = op(in, {});
  const std::uint32_t saved_at = in[3].version();
  in[3].fill_(0);
  CHECK(test::error_of([&] {
          y.backward(Tensor::ones({3, 4}, DType::f64));
        }) == message("mlp: saved down was changed in place (version {}, saved at {})",
                      saved_at + 1, saved_at));
}

TEST_CASE("mlp: meta operands give shape and dtype") {
  for (const Activation a : test::kEveryActivation) {
    TensorList in;
    for (const Tensor& t : inputs({{2, 3, 8}, 16, 5}, a, DType::bf16))
      in.push_back(Tensor::empty(t.shape(), t.dtype(), kMeta));
    const Tensor y = op(in, {.activation = a});
    CHECK(y.is_meta());
    CHECK(y.shape() == Shape{2, 3, 5});
    CHECK(y.dtype() == DType::bf16);
  }
}

TEST_CASE("mlp: errors name the rule and both shapes") {
  const Tensor x = Tensor::zeros({2, 3}), up = Tensor::zeros({4, 3}), ub = Tensor::zeros({4});
  const Tensor down = Tensor::zeros({5, 4}), db = Tensor::zeros({5});
  const auto text = [&](const Tensor& a, const Tensor& u, const Tensor& bu, const Tensor& d,
                        const Tensor& bd, Activation kind = Activation::gelu_tanh) {
    return test::error_of([&] { mlp(a, u, bu, d, bd, {.activation = kind}); });
  };
  CHECK(text(Tensor::zeros({}), up, ub, down, db) ==
        "mlp: x must have at least 1 axis, got shape []");
  CHECK(text(Tensor::zeros({2, 3}, DType::i64), up, ub, down, db) ==
        "mlp: dtype must be one of f32, f64, bf16, f16, got i64");
  CHECK(text(x, ub, ub, down, db) == "mlp: up and down must have 2 axes, got [4] and [5, 4]");
  CHECK(text(x, Tensor::zeros({4, 2}), ub, down, db) ==
        "mlp: up must have shape [4, 3], got [4, 2]");
  CHECK(text(x, up, ub, down, db, Activation::swiglu) ==
        "mlp: up must have shape [8, 3], got [4, 3]");
  CHECK(text(x, up, db, down, db) == "mlp: up_bias must have shape [4], got [5]");
  CHECK(text(x, up, ub, down, ub) == "mlp: down_bias must have shape [5], got [4]");
  CHECK(text(x, up, ub, Tensor::zeros({5, 4}, DType::f64), db) ==
        "mlp: down must have the dtype of x, f32, got f64");
  CHECK(text(x, up, Tensor::empty({4}, DType::f32, kMeta), down, db) ==
        "mlp: up_bias must be on the device of x, cpu, got meta");
}

}  // namespace weft::mlp_test
