#include <doctest/doctest.h>

#include <set>
#include <string>

#include "weft/autograd/discard.h"
#include "weft/core/parallel.h"
#include "weft/tests/activation_support.h"
#include "weft/tests/support.h"

namespace weft::activation_test {
namespace {

using test::activation_by_parts;
using test::error_of;
using test::hidden_width;
using test::mismatch;
using test::random;

template <class F>
TensorList run(F f, const TensorList& in, const Tensor& dy) {
  TensorList leaves;
  for (const Tensor& t : in) leaves.push_back(t.detach().set_requires_grad());
  Tape tape;
  const Tensor y = f(leaves);
  TensorList out = tape.gradients(y, leaves, dy);
  out.push_back(y.detach());
  return out;
}

// GELU and SwiGLU have kernels of their own; those of the scaled forms and of SwiGLU are once
// differentiable.
bool is_fused(Activation kind) { return kind <= Activation::swiglu; }
bool differentiates_twice(Activation kind, bool scaled) {
  return scaled ? !is_fused(kind) : kind != Activation::swiglu;
}

}  // namespace

TEST_CASE("activation: every value has a row and a word of its own, in the order of its number") {
  std::set<std::string> words;
  for (std::size_t i = 0; i < std::size(kActivations); ++i) {
    CHECK(static_cast<std::size_t>(kActivations[i].kind) == i);
    CHECK(words.insert(kActivations[i].word).second);
  }
  CHECK(std::size(test::kFormulas) == std::size(kActivations));
  CHECK(error_of([] { row_of(static_cast<Activation>(99)); }) ==
        "activation: value 99 must have a row in kActivations");
}

TEST_CASE("activation, scaled_activation: values and gradients in every dtype equal the formula") {
  for (const ActivationRow& row : kActivations)
    for (const std::int64_t width : {0, 1, 5, 300})
      for (const std::int64_t rows : {0, 1, 7})
        for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
          CAPTURE(row.word);
          CAPTURE(width);
          CAPTURE(t);
          const DType wide = t == DType::f64 ? DType::f64 : DType::f32;
          const Tensor h = random({rows, hidden_width(row.kind, width)}, 1, t),
                       p = test::random_in({rows}, 0, 1, 2, wide), dy = random({rows, width}, 3, t);
          const auto plain = [&](const TensorList& in) { return activation(in[0], row.kind); };
          const auto scaled = [&](const TensorList& in) {
            return scaled_activation(in[0], in[1], row.kind);
          };
          const auto want = [&](const TensorList& in) {
            const Tensor y = activation_by_parts(in[0], row.kind);
            return in.size() == 1 ? y : mul(y, in[1].unsqueeze(1));
          };
          const Tensor h64 = h.to(DType::f64), p64 = p.to(DType::f64), dy64 = dy.to(DType::f64);
          const double bound = test::tolerance(t);
          const TensorList one = run(plain, {h}, dy), one64 = run(want, {h64}, dy64);
          for (int i = 0; i < 2; ++i) CHECK(mismatch(one[i], one64[i], bound) == "");
          const TensorList two = run(scaled, {h, p}, dy), two64 = run(want, {h64, p64}, dy64);
          CHECK(mismatch(two[0], two64[0], bound) == "");
          CHECK(mismatch(two[1], two64[1], 2 * test::tolerance(wide)) == "");
          CHECK(mismatch(two[2], two64[2], bound) == "");
          CHECK(two[1].dtype() == wide);
          CHECK(two[2].dtype() == t);
        }
}

TEST_CASE("activation, scaled_activation: gradients match finite differences twice") {
  for (const ActivationRow& row : kActivations) {
    CAPTURE(row.word);
    const auto plain = [&](const TensorList& in) { return activation(in[0], row.kind); };
    const auto scaled = [&](const TensorList& in) {
      return scaled_activation(in[0], in[1], row.kind);
    };
    const Tensor h = random({4, hidden_width(row.kind, 3)}, 1),
                 p = Tensor::of({0.5, 0, -1, 2}, {4}, DType::f64);
    CHECK(gradcheck(plain, {h}, {.second_order = differentiates_twice(row.kind, false)}) == "");
    CHECK(gradcheck(plain, {test::strided(h)}) == "");
    CHECK(gradcheck(plain, {random({2, 3, hidden_width(row.kind, 2)}, 4)}) == "");
    CHECK(gradcheck(scaled, {h, p}, {.second_order = differentiates_twice(row.kind, true)}) == "");
    CHECK(gradcheck(scaled, {test::strided(h), test::strided(p)}) == "");
    const auto both = [&](const TensorList& in) {  // the scale is a part of the rows
      return scaled_activation(in[0], in[0].select(1, 0), row.kind);
    };
    CHECK(gradcheck(both, {h}) == "");
  }
  CHECK(gradcheck([](const TensorList& in) { return activation(in[0], Activation::geglu); },
                  {random({2, 4})}) == "");
  CHECK(gradcheck(
            [](const TensorList& in) { return scaled_activation(in[0], in[1], Activation::relu2); },
            {random({2, 4}), random({2}, 2)}) == "");
}

TEST_CASE("activation: only what requires a gradient gets one") {
  for (const ActivationRow& row : kActivations)
    for (const int wanted : {0, 1}) {
      CAPTURE(row.word);
      Tensor in[] = {random({3, hidden_width(row.kind, 2)}, 1), random({3}, 2)};
      in[wanted].set_requires_grad();
      Tape tape;
      scaled_activation(in[0], in[1], row.kind).backward(random({3, 2}, 3));
      CHECK(in[wanted].grad().defined());
      CHECK_FALSE(in[1 - wanted].grad().defined());
    }
}

TEST_CASE("activation: keeps the hidden layer alone, or nothing more if its output is discarded") {
  for (const ActivationRow& row : kActivations) {
    CAPTURE(row.word);
    const std::int64_t bytes = 64 * 32 * 8;
    const Tensor weight = random({32}, 5).set_requires_grad();
    for (const bool discard : {false, true}) {
      const Tensor h = random({64, hidden_width(row.kind, 32)}, 1).set_requires_grad();
      const std::int64_t before = memory_stats().live_bytes;
      Tape tape;
      const Tensor y = use_discarded(
          discard, {h}, [&](const TensorList& in) { return activation(in[0], row.kind); },
          [&](const Tensor& a) { return mul(a, weight).sum(); });
      CHECK(memory_stats().live_bytes - before < (discard ? 0 : bytes) + 4096);
      tape.gradients(y, {h, weight});
    }
  }
}

TEST_CASE("activation: the number of threads changes no bit and meta gives the same shape") {
  const test::RestoreThreads restore;
  for (const ActivationRow& row : kActivations) {
    CAPTURE(row.word);
    const Tensor h = random({61, hidden_width(row.kind, 517)}, 3, DType::f32);
    set_num_threads(1);
    const Tensor one = activation(h, row.kind);
    set_num_threads(3);
    CHECK(test::different_bits(activation(h, row.kind), one) == "");
    const Tensor meta = Tensor::empty({2, hidden_width(row.kind, 3)}, DType::bf16, kMeta),
                 scale = Tensor::empty({2}, DType::f32, kMeta);
    CHECK(activation(meta, row.kind).shape() == Shape{2, 3});
    CHECK(scaled_activation(meta, scale, row.kind).shape() == Shape{2, 3});
    CHECK(scaled_activation(meta, scale, row.kind).dtype() == DType::bf16);
  }
}

TEST_CASE("activation: errors name the rule") {
  const Tensor h = random({2, 3}, 1, DType::f32), p = random({2}, 1, DType::f32);
  const auto text = [](const Tensor& t, Activation kind) {
    return error_of([&] { activation(t, kind); });
  };
  const auto scaled = [](const Tensor& t, const Tensor& scale, Activation kind) {
    return error_of([&] { scaled_activation(t, scale, kind); });
  };
  CHECK(text({}, Activation::relu2) == "activation: hidden must be a tensor, got a null handle");
  CHECK(text(h.to(DType::i32), Activation::relu) ==
        "activation: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(text(h, Activation::geglu) ==
        "activation: hidden must have a last axis of even length [gate | up] for geglu, got shape "
        "[2, 3]");
  CHECK(text(Tensor::zeros({}), Activation::geglu) ==
        "activation: hidden must have a last axis of even length [gate | up] for geglu, got shape "
        "[]");
  CHECK(scaled(h, {}, Activation::silu) ==
        "scaled_activation: scale must be a tensor, got a null handle");
  CHECK(scaled(h.flatten(), p, Activation::relu) ==
        "scaled_activation: hidden must have shape (rows, width), got [6]");
  CHECK(scaled(h, random({3}, 1, DType::f32), Activation::relu) ==
        "scaled_activation: scale must have shape [2], got [3]");
  CHECK(scaled(h.to(DType::bf16), p.to(DType::bf16), Activation::relu2) ==
        "scaled_activation: scale must be f32 on cpu, got bf16 on cpu");
}

}  // namespace weft::activation_test
