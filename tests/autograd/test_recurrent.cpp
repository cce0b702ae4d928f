#include <doctest/doctest.h>

#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/recurrent.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::recurrent_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

struct Case {
  std::int64_t batch, tokens, units;
};
// one of each, odd sizes, a vector, wider than a panel of the weight, no sequences, no tokens
const Case kCases[] = {{1, 1, 1}, {2, 5, 3}, {3, 2, 16}, {2, 3, 35}, {0, 4, 3}, {3, 0, 4}};

const Tensor kCu = Tensor::of({0, 3, 3, 4, 9}, {5}, DType::i32);

// gates, weight, bias, h, c of a GRU (3 gates) or LSTM (4); a GRU does not read c.
TensorList operands(const Case& c, std::int64_t gates, DType t = DType::f64,
                    std::int64_t sequences = -1) {
  if (sequences < 0) sequences = c.batch;
  const DType real = t == DType::f64 ? t : DType::f32;
  return {random({c.batch, c.tokens, gates * c.units}, 1, t),
          random({gates * c.units, c.units}, 2, t), random({gates * c.units}, 3, t),
          random({sequences, c.units}, 4, real), random({sequences, c.units}, 5, real)};
}

// Without c for a GRU.
TensorList read_by(std::int64_t gates, const TensorList& in) {
  return gates == 3 ? TensorList{in[0], in[1], in[2], in[3]} : in;
}

// Results as a list: y, h, and for an LSTM c.
TensorList call(std::int64_t gates, const TensorList& in, const Tensor& cu = {}) {
  if (gates == 3) {
    const GruOutput out = gru(in[0], in[1], in[2], {.state = in[3], .cu_seqlens = cu});
    return {out.y, out.state};
  }
  LstmState state{in[3], in[4]};
  if (!in[3].defined()) state.c = {};
  const LstmOutput out = lstm(in[0], in[1], in[2], {.state = state, .cu_seqlens = cu});
  return {out.y, out.state.h, out.state.c};
}

// All of them in one tensor, for gradcheck.
Tensor joined(const TensorList& results) {
  TensorList flat;
  for (const Tensor& t : results) flat.push_back(t.reshape({t.numel()}));
  return cat(flat, 0);
}

// One step by the formulas, with public ops.
TensorList step(std::int64_t gates, const Tensor& x, const TensorList& in, const Tensor& h,
                const Tensor& c) {
  const std::int64_t n = in[1].dim(1);
  const Tensor a = matmul(h, in[1].t()) + in[2];
  const auto part = [n](const Tensor& t, int i) { return t.narrow(1, i * n, n); };
  if (gates == 3) {
    const Tensor r = sigmoid(part(x, 0) + part(a, 0)), z = sigmoid(part(x, 1) + part(a, 1));
    return {(1 - z) * tanh(part(x, 2) + r * part(a, 2)) + z * h, c};
  }
  const Tensor s = x + a;
  const Tensor next = sigmoid(part(s, 1)) * c + sigmoid(part(s, 0)) * tanh(part(s, 2));
  return {sigmoid(part(s, 3)) * tanh(next), next};
}
TensorList by_definition(std::int64_t gates, const TensorList& in) {
  Tensor h = in[3], c = in[4];
  TensorList y;
  for (std::int64_t t = 0; t < in[0].dim(1); ++t) {
    const TensorList next = step(gates, in[0].select(1, t), in, h, c);
    h = next[0];
    c = next[1];
    y.push_back(h);
  }
  const Tensor all = y.size() ? stack(y, 1) : Tensor::zeros({h.dim(0), 0, h.dim(1)}, DType::f64);
  return gates == 3 ? TensorList{all, h} : TensorList{all, h, c};
}

// The results and the gradients of all operands.
TensorList run(std::int64_t gates, const TensorList& in, const Tensor& cu = {}) {
  TensorList leaves;
  for (const Tensor& t : in) leaves.push_back(t.detach().set_requires_grad());
  Tape tape;
  TensorList out = call(gates, leaves, cu);
  const Tensor all = joined({out[0].to(DType::f64), out[1].to(DType::f64)});
  for (const Tensor& d : tape.gradients(all, read_by(gates, leaves), random(all.shape(), 9)))
    out.push_back(d);
  return out;
}

const char* different(const TensorList& a, const TensorList& b) {
  for (int i = 0; i < a.size(); ++i)
    if (different_bits(a[i], b[i]) != "") return "bits differ";
  return "";
}

}  // namespace

TEST_CASE("recurrent: gru and lstm agree with their formulas, in any layout") {
  for (const std::int64_t gates : {3, 4})
    for (const Case& c : kCases) {
      CAPTURE(gates);
      CAPTURE(c.units);
      const TensorList in = operands(c, gates);
      TensorList gaps;
      for (const Tensor& t : in) gaps.push_back(test::strided(t));
      const TensorList want = by_definition(gates, in), got = call(gates, in);
      const TensorList from_gaps = call(gates, gaps);
      for (int i = 0; i < want.size(); ++i) {
        CHECK(mismatch(got[i], want[i], 1e-12) == "");
        CHECK(mismatch(from_gaps[i], want[i], 1e-12) == "");
      }
    }
}

TEST_CASE("recurrent: a null bias or state is zeros") {
  for (const std::int64_t gates : {3, 4}) {
    TensorList in = operands({2, 4, 5}, gates);
    const auto zero = [&](int i) { return zeros_like(in[i]); };
    const TensorList zeros{in[0], in[1], zero(2), zero(3), zero(4)};
    CHECK(different(call(gates, zeros), call(gates, {in[0], in[1], {}, {}, {}})) == "");
  }
}

TEST_CASE("recurrent: packed sequences give the bits of separate ones") {
  for (const std::int64_t gates : {3, 4})
    for (const DType t : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      CAPTURE(gates);
      const TensorList in = operands({1, 9, 35}, gates, t, 4);
      const TensorList got = run(gates, in, kCu);
      const int results = gates - 1;
      for (const auto& [i, from, n] : {std::tuple{0, 0, 3}, {1, 3, 0}, {2, 3, 1}, {3, 4, 5}}) {
        TensorList alone{in[0].narrow(1, from, n), in[1], in[2], in[3].narrow(0, i, 1),
                         in[4].narrow(0, i, 1)};
        const TensorList want = call(gates, alone);
        CHECK(different_bits(got[0].narrow(1, from, n), want[0]) == "");
        for (int k = 1; k < results; ++k)
          CHECK(different_bits(got[k].narrow(0, i, 1), want[k]) == "");
      }
    }
}

TEST_CASE("recurrent: going on from a state equals one call, to the bit") {
  for (const std::int64_t gates : {3, 4})
    for (const DType t : {DType::f32, DType::f64}) {
      const TensorList in = operands({3, 6, 20}, gates, t);
      const TensorList whole = call(gates, in);
      TensorList part = in;
      for (int token = 0; token < 6; ++token) {
        part[0] = in[0].narrow(1, token, 1);
        const TensorList out = call(gates, part);
        CHECK(different_bits(out[0], whole[0].narrow(1, token, 1)) == "");
        part[3] = out[1];
        if (gates == 4) part[4] = out[2];
      }
      CHECK(different_bits(part[3], whole[1]) == "");
    }
}

TEST_CASE("recurrent: gradients match finite differences for gru and lstm") {
  for (const std::int64_t gates : {3, 4}) {
    CAPTURE(gates);
    for (const Case& c : kCases) {
      if (c.units > 16) continue;
      CAPTURE(c.units);
      const TensorList in = read_by(gates, operands(c, gates));
      TensorList gaps;
      for (const Tensor& t : in) gaps.push_back(test::strided(t));
      const auto f = [=](const TensorList& x) { return joined(call(gates, x)); };
      CHECK(gradcheck(f, in) == "");
      CHECK(gradcheck(f, gaps) == "");
    }
    const TensorList packed = read_by(gates, operands({1, 9, 2}, gates, DType::f64, 4));
    CHECK(gradcheck([=](const TensorList& x) { return joined(call(gates, x, kCu)); }, packed) ==
          "");
    // Without a bias or state, of y alone or the last state alone; gates and weight from one
    // tensor.
    const TensorList some{random({2, 3, 2 * gates}, 1), random({2 * gates, 2}, 2)};
    for (const int result : {0, 1})
      CHECK(gradcheck(
                [=](const TensorList& x) {
                  return call(gates, {x[0], x[1], {}, {}, {}})[result];
                },
                some) == "");
    CHECK(gradcheck(
              [=](const TensorList& x) {
                const Tensor weight = x[0].reshape({6, 2 * gates}).narrow(0, 0, 2).t();
                return joined(call(gates, {x[0] * x[0], weight, {}, {}, {}}));
              },
              {random({2, 3, 2 * gates}, 1)}) == "");
  }
  // The cell state alone.
  CHECK(gradcheck(
            [](const TensorList& x) {
              return lstm(x[0], x[1], x[2], {.state = {x[3], x[4]}}).state.c;
            },
            operands({2, 3, 2}, 4)) == "");
  CHECK(gradcheck([](const TensorList& x) { return gru(x[0], x[1], {}).y; },
                  {random({2, 3, 6}, 1), random({6, 2}, 2)}) == "");
}

TEST_CASE("recurrent: a frozen weight changes no other gradient") {
  for (const std::int64_t gates : {3, 4}) {
    const TensorList in = operands({2, 4, 5}, gates);
    const Tensor x = in[0].detach().set_requires_grad(), dy = random({2, 4, 5}, 9);
    Tape tape;
    const Tensor y = call(gates, {x, in[1], in[2], in[3], in[4]})[0];
    const Tensor frozen = tape.gradients(y, {x}, dy)[0];
    const Tensor w = in[1].detach().set_requires_grad();
    Tape both;
    const Tensor z = call(gates, {x, w, in[2], in[3], in[4]})[0];
    CHECK(different_bits(both.gradients(z, {x, w}, dy)[0], frozen) == "");
  }
}

TEST_CASE("recurrent: f32 and bf16 agree with f64 and the number of threads changes no bit") {
  for (const std::int64_t gates : {3, 4}) {
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const Case& c : kCases) {
        CAPTURE(gates);
        CAPTURE(c.units);
        const TensorList in = operands(c, gates, t);
        TensorList wide;
        for (const Tensor& x : in) wide.push_back(x.to(DType::f64));
        const TensorList got = run(gates, in), want = run(gates, wide);
        for (int i = 0; i < got.size(); ++i)
          CHECK(mismatch(got[i], want[i], 4 * test::tolerance(t)) == "");
        CHECK(got[0].dtype() == t);
        CHECK(got[1].dtype() == DType::f32);
      }
    for (const DType t : {DType::f32, DType::f64}) {
      const TensorList in = operands({37, 12, 70}, gates, t);
      const test::RestoreThreads restore(1);
      set_deterministic(true);  // of the product for the gradient of the weight
      const TensorList one = run(gates, in);
      for (const int n : {2, 4}) {
        set_num_threads(n);
        CHECK(different(run(gates, in), one) == "");
      }
    }
  }
}

TEST_CASE("recurrent: meta gives shapes and dtypes") {
  const Tensor cu = Tensor::of({0, 3, 6}, {3}, DType::i32);
  for (const std::int64_t gates : {3, 4}) {
    const auto meta = [](const Shape& s) { return Tensor::empty(s, DType::bf16, kMeta); };
    const Tensor x = meta({1, 6, gates * 4}).set_requires_grad();
    const TensorList in{x, meta({gates * 4, 4}), meta({gates * 4}), {}, {}};
    Tape tape;
    const TensorList out = call(gates, in, cu);
    CHECK(out[0].shape() == Shape{1, 6, 4});
    CHECK(out[0].dtype() == DType::bf16);
    CHECK(out[1].shape() == Shape{2, 4});
    CHECK(out[1].dtype() == DType::f32);
    CHECK(tape.gradients(out[0], {x}, empty_like(out[0]))[0].shape() == x.shape());
  }
}

TEST_CASE("recurrent: errors name the rule") {
  const TensorList g = operands({1, 9, 4}, 3), l = operands({1, 9, 4}, 4);
  const auto of_gru = [&](int i, const Tensor& wrong) {
    TensorList in = g;
    in[i] = wrong;
    return error_of([&] { call(3, in); });
  };
  const auto packed = [&](const Tensor& cu) {
    return error_of([&] { gru(g[0], g[1], g[2], {.cu_seqlens = cu}); });
  };
  CHECK(of_gru(0, {}) == "gru: gates must be a tensor, got a null handle");
  CHECK(of_gru(1, {}) == "gru: weight_hh must be a tensor, got a null handle");
  CHECK(of_gru(0, g[0].to(DType::i32)) == "gru: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(of_gru(0, random({9, 12})) ==
        "gru: gates must have shape (batch, tokens, 3 units), got [9, 12]");
  CHECK(of_gru(0, random({1, 9, 16})) ==
        "gru: the last axis of gates must be 3 times the number of units, got 16");
  CHECK(of_gru(0, random({1, 9, 0})) ==
        "gru: the last axis of gates must be 3 times the number of units, got 0");
  CHECK(of_gru(1, random({12, 5})) == "gru: weight_hh must have shape [12, 4], got [12, 5]");
  CHECK(of_gru(1, g[1].to(DType::f32)) ==
        "gru: weight_hh must have the dtype of gates, f64, got f32");
  CHECK(of_gru(1, Tensor::empty({12, 4}, DType::f64, kMeta)) ==
        "gru: weight_hh must be on the device of gates, cpu, got meta");
  CHECK(of_gru(2, random({4})) == "gru: bias_hh must have shape [12], got [4]");
  CHECK(of_gru(3, random({2, 4})) == "gru: state must be f64 [1, 4], got f64 [2, 4]");
  CHECK(of_gru(3, g[3].to(DType::f32)) == "gru: state must be f64 [1, 4], got f32 [1, 4]");
  CHECK(of_gru(3, Tensor::empty({1, 4}, DType::f64, kMeta)) ==
        "gru: state must be on the device of gates, cpu, got meta");
  CHECK(error_of([&] {
          lstm(l[0], l[1], l[2], {.state = {l[3], {}}});
        }) == "lstm: state must have both h and c, got only h");
  CHECK(error_of([&] {
          lstm(l[0], l[1], l[2], {.state = {{}, l[4]}});
        }) == "lstm: state must have both h and c, got only c");
  CHECK(error_of([&] {
          lstm(l[0], l[1], l[2], {.state = {l[3], random({1, 5})}});
        }) == "lstm: state.c must be f64 [1, 4], got f64 [1, 5]");
  CHECK(error_of([&] { lstm(g[0], l[1], l[2]); }) ==
        "lstm: weight_hh must have shape [12, 3], got [16, 4]");
  CHECK(error_of([&] {
          gru(random({2, 9, 12}), g[1], g[2], {.cu_seqlens = kCu});
        }) == "gru: with cu_seqlens gates must be one row, got [2, 9, 12]");
  CHECK(packed(random({3})) == "gru: cu_seqlens must be i32 with shape [n + 1], got f64 [3]");
  CHECK(packed(Tensor::empty({3}, DType::i32, kMeta)) ==
        "gru: cu_seqlens must be on the CPU or with gates on cpu, got meta");
  CHECK(packed(Tensor::of({0, 8}, {2}, DType::i32)) ==
        "gru: cu_seqlens must end at the number of tokens 9, got 8");
}

TEST_CASE("recurrent: a second derivative and a changed result are errors") {
  const TensorList in = operands({1, 2, 3}, 3);
  const Tensor x = in[0].detach().set_requires_grad();
  {
    Tape outer;
    Tape inner;
    const Tensor y = gru(x, in[1], in[2]).y;
    CHECK(error_of([&] { inner.gradients(y, {x}, random(y.shape())); }).find("gru") == 0);
  }
  Tape tape;
  const Tensor y = gru(x, in[1], in[2]).y;
  {
    const NoGradGuard quiet;
    Tensor(y).copy_(zeros_like(y));
  }
  CHECK(error_of([&] { tape.gradients(y, {x}, random(y.shape())); }) ==
        "gru: saved y was changed in place (version 1, saved at 0)");
}

}  // namespace weft::recurrent_test
