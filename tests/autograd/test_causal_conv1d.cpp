#include <doctest/doctest.h>

#include <vector>

#include "weft/autograd/causal_conv1d.h"
#include "weft/autograd/elementwise.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::causal_conv1d_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

struct Case {
  Shape x;
  std::int64_t taps;
};
// one of each, odd sizes, wider than a vector, fewer tokens than taps, more than a chunk, zero
// tokens
const Case kCases[] = {{{1, 1, 1}, 1},   {{2, 7, 3}, 4}, {{1, 5, 35}, 2}, {{2, 3, 16}, 8},
                       {{1, 150, 5}, 4}, {{3, 0, 4}, 3}, {{2, 9, 17}, 3}};

// The definition, token by token.
Tensor by_definition(const Tensor& x, const Tensor& w, bool act,
                     const std::vector<std::int64_t>& starts = {}) {
  const std::int64_t B = x.dim(0), T = x.dim(1), C = x.dim(2), K = w.dim(1);
  const Tensor y = Tensor::zeros(x.shape(), DType::f64);
  const Tensor wd = contiguous(w), xd = contiguous(x);
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t t = 0; t < T; ++t) {
      std::int64_t first = 0;
      for (const std::int64_t s : starts)
        if (s <= t) first = s;
      for (std::int64_t c = 0; c < C; ++c) {
        double sum = 0;
        for (std::int64_t j = 0; j < K; ++j)
          if (const std::int64_t from = t - K + 1 + j; from >= first)
            sum += wd.data<double>()[c * K + j] * xd.data<double>()[(b * T + from) * C + c];
        y.data<double>()[(b * T + t) * C + c] = act ? sum / (1 + std::exp(-sum)) : sum;
      }
    }
  return y;
}

const Tensor kCu = Tensor::of({0, 3, 3, 4, 9}, {5}, DType::i32);

TensorList run(const TensorList& in, const Tensor& dy, const CausalConv1dOptions& o) {
  TensorList leaves;
  for (const Tensor& t : in) leaves.push_back(t.detach().set_requires_grad());
  Tape tape;
  const Tensor y = causal_conv1d(leaves[0], leaves[1], o);
  TensorList out = tape.gradients(y, leaves, dy);
  out.push_back(y);
  return out;
}

}  // namespace

TEST_CASE("causal_conv1d: agrees with its definition") {
  for (const Case& c : kCases)
    for (const bool act : {false, true}) {
      CAPTURE(to_string(c.x));
      const Tensor x = random(c.x, 1), w = random({c.x.back(), c.taps}, 2);
      CHECK(mismatch(causal_conv1d(x, w, {.silu = act}), by_definition(x, w, act), 1e-12) == "");
      CHECK(mismatch(causal_conv1d(test::strided(x), test::strided(w), {.silu = act}),
                     by_definition(x, w, act), 1e-12) == "");
    }
  const Tensor x = random({1, 9, 5}, 1), w = random({5, 4}, 2);
  CHECK(mismatch(causal_conv1d(x, w, {.cu_seqlens = kCu}), by_definition(x, w, false, {0, 3, 4}),
                 1e-12) == "");
}

TEST_CASE("causal_conv1d: packed sequences give the bits of separate ones") {
  for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    const Tensor x = random({1, 9, 21}, 1, t), w = random({21, 4}, 2, t);
    const Tensor y = causal_conv1d(x, w, {.silu = true, .cu_seqlens = kCu});
    for (const auto& [from, n] : {std::pair{0, 3}, {3, 1}, {4, 5}})
      CHECK(different_bits(y.narrow(1, from, n),
                           causal_conv1d(x.narrow(1, from, n), w, {.silu = true})) == "");
  }
}

TEST_CASE("causal_conv1d: token by token with a state equals one call") {
  const Tensor x = random({2, 6, 5}, 1), w = random({5, 4}, 2);
  const Tensor whole = causal_conv1d(x, w, {.silu = true});
  Tensor state = Tensor::zeros({2, 3, 5}, DType::f64);
  for (int t = 0; t < 6; ++t) {
    const Tensor token = x.narrow(1, t, 1);
    const Tensor y = causal_conv1d(token, w, {.silu = true, .state = state});
    CHECK(mismatch(y, whole.narrow(1, t, 1), 1e-14) == "");
    state = contiguous(cat({state, token}, 1).narrow(1, 1, 3));
  }
}

TEST_CASE("causal_conv1d: gradients match finite differences for every layout and with a state") {
  for (const Case& c : kCases) {
    if (c.x.numel() > 300) continue;
    for (const bool act : {false, true}) {
      CAPTURE(to_string(c.x));
      const auto f = [=](const TensorList& in) {
        return causal_conv1d(in[0], in[1], {.silu = act});
      };
      const Tensor x = random(c.x, 1), w = random({c.x.back(), c.taps}, 2);
      CHECK(gradcheck(f, {x, w}) == "");
      CHECK(gradcheck(f, {test::strided(x), test::strided(w)}) == "");
    }
  }
  const Tensor x = random({1, 9, 4}, 1), w = random({4, 3}, 2);
  CHECK(gradcheck(
            [](const TensorList& in) {
              return causal_conv1d(in[0], in[1], {.silu = true, .cu_seqlens = kCu});
            },
            {x, w}) == "");
  CHECK(
      gradcheck([](const TensorList& in) { return causal_conv1d(in[0], in[1], {.state = in[2]}); },
                {x, w, random({1, 2, 4}, 3)}) == "");
  CHECK(gradcheck(
            [](const TensorList& in) {
              return causal_conv1d(mul(in[0], in[0]), in[0].view({3, 3}), {.silu = true}).t();
            },
            {random({1, 3, 3}, 5)}) == "");
}

TEST_CASE("causal_conv1d: the gradient of x does not depend on the weight requiring one") {
  const Tensor w = random({5, 4}, 2), dy = random({1, 9, 5}, 3);
  const Tensor both = run({random({1, 9, 5}, 1), w}, dy, {.silu = true})[0];
  const Tensor x = random({1, 9, 5}, 1).set_requires_grad();
  Tape tape;
  const Tensor y = causal_conv1d(x, w, {.silu = true});
  CHECK(different_bits(tape.gradients(y, {x}, dy)[0], both) == "");
}

TEST_CASE("causal_conv1d: f32 and bf16 agree with f64 and the number of threads changes no bit") {
  const test::RestoreThreads restore;
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const Case& c : kCases) {
      CAPTURE(to_string(c.x));
      const TensorList in{random(c.x, 1, t), random({c.x.back(), c.taps}, 2, t)};
      const Tensor dy = random(c.x, 3, t);
      const CausalConv1dOptions o{.silu = true};
      const TensorList got = run(in, dy, o);
      const TensorList want =
          run({in[0].to(DType::f64), in[1].to(DType::f64)}, dy.to(DType::f64), o);
      for (int i = 0; i < 3; ++i) CHECK(mismatch(got[i], want[i], test::tolerance(t)) == "");
    }
  const TensorList in{random({3, 500, 65}, 1, DType::f32), random({65, 4}, 2, DType::f32)};
  const Tensor dy = random({3, 500, 65}, 3, DType::f32);
  set_num_threads(1);
  const TensorList one = run(in, dy, {.silu = true});
  set_num_threads(3);
  const TensorList three = run(in, dy, {.silu = true});
  for (int i = 0; i < 3; ++i) CHECK(different_bits(one[i], three[i]) == "");
}

TEST_CASE("causal_conv1d: meta gives shape and dtype") {
  const Tensor x = Tensor::empty({2, 3, 4}, DType::bf16, kMeta);
  const Tensor y = causal_conv1d(x, Tensor::empty({4, 4}, DType::bf16, kMeta));
  CHECK(y.shape() == x.shape());
  CHECK(y.dtype() == DType::bf16);
}

TEST_CASE("causal_conv1d: errors name the rule") {
  const Tensor x = random({1, 9, 4}), w = random({4, 3});
  const auto with = [&](const CausalConv1dOptions& o) {
    return error_of([&] { causal_conv1d(x, w, o); });
  };
  const auto i32 = [](std::initializer_list<double> v) {
    return Tensor::of(v, {static_cast<std::int64_t>(v.size())}, DType::i32);
  };
  CHECK(error_of([&] { causal_conv1d(Tensor(), w); }) ==
        "causal_conv1d: x must be a tensor, got a null handle");
  CHECK(error_of([&] { causal_conv1d(x, Tensor()); }) ==
        "causal_conv1d: weight must be a tensor, got a null handle");
  CHECK(error_of([&] { causal_conv1d(x.to(DType::i32), w); }) ==
        "causal_conv1d: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(error_of([&] { causal_conv1d(w, w); }) ==
        "causal_conv1d: x must have shape (batch, tokens, channels), got [4, 3]");
  CHECK(error_of([&] {
          causal_conv1d(x, random({3, 4}));
        }) == "causal_conv1d: weight must have shape (channels 4, taps), got [3, 4]");
  CHECK(error_of([&] {
          causal_conv1d(x, random({4, 9}));
        }) == "causal_conv1d: taps must be in [1, 8], got 9");
  CHECK(error_of([&] { causal_conv1d(x, w.to(DType::f32)); }) ==
        "causal_conv1d: weight must have dtype f64 like x, got f32");
  CHECK(error_of([&] {
          causal_conv1d(x, Tensor::empty({4, 3}, DType::f64, kMeta));
        }) == "causal_conv1d: weight must be on device cpu like x, got meta");
  CHECK(error_of([&] {
          causal_conv1d(random({2, 9, 4}), w, {.cu_seqlens = kCu});
        }) == "causal_conv1d: with cu_seqlens x must be one row, got [2, 9, 4]");
  CHECK(with({.cu_seqlens = kCu, .state = random({1, 2, 4})}) ==
        "causal_conv1d: cu_seqlens cannot go with a state");
  CHECK(with({.state = random({1, 3, 4})}) ==
        "causal_conv1d: state must be f64 [1, 2, 4], got f64 [1, 3, 4]");
  CHECK(with({.cu_seqlens = random({3})}) ==
        "causal_conv1d: cu_seqlens must be i32 with shape [n + 1], got f64 [3]");
  CHECK(with({.cu_seqlens = Tensor::empty({3}, DType::i32, kMeta)}) ==
        "causal_conv1d: cu_seqlens must be on the CPU or with x on cpu, got meta");
  CHECK(with({.cu_seqlens = i32({1, 9})}) == "causal_conv1d: cu_seqlens must start at 0, got 1");
  CHECK(with({.cu_seqlens = i32({0, 5, 4, 9})}) ==
        "causal_conv1d: cu_seqlens must not decrease, got 4 after 5");
  CHECK(with({.cu_seqlens = i32({0, 8})}) ==
        "causal_conv1d: cu_seqlens must end at the number of tokens 9, got 8");
}

}  // namespace weft::causal_conv1d_test
