#include <doctest/doctest.h>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/gated_delta.h"
#include "weft/autograd/reduce.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft::gated_delta_test {
namespace {

using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;
using test::random_in;

struct Sizes {
  std::int64_t batch, tokens, key_heads, value_heads, key_dim, value_dim;
};

enum class Decay { weak, strong, mixed };

Tensor unit(const Tensor& x) { return div(x, sqrt(add(sum(square(x), {-1}, true), 1e-6))); }

// q, k (of length 1), v, g, beta, state.
TensorList operands(const Sizes& s, Decay decay, DType t = DType::f64) {
  const DType real = t == DType::f64 ? DType::f64 : DType::f32;
  const Shape gates{s.batch, s.tokens, s.value_heads};
  Tensor g = random_in(gates, -0.3, 0, 4);
  if (decay == Decay::strong) g = mul(g, 100);
  // Sometimes the state is almost erased, which gives small differences of large sums.
  if (decay == Decay::mixed) g = where(lt(g, -0.28), Tensor::full(g.shape(), -90, DType::f64), g);
  return {unit(random({s.batch, s.tokens, s.key_heads, s.key_dim}, 1)).to(t),
          unit(random({s.batch, s.tokens, s.key_heads, s.key_dim}, 2)).to(t),
          random({s.batch, s.tokens, s.value_heads, s.value_dim}, 3, t),
          g.to(real),
          random_in(gates, 0, 1, 5).to(real),
          random({s.batch, s.value_heads, s.key_dim, s.value_dim}, 6, real)};
}

using Form = GatedDelta(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const GatedDeltaOptions&);

// y, the last state, and the gradients of q, k, v, g, beta and the first state.
TensorList run(Form* form, const TensorList& in, const Tensor& dy, const Tensor& dstate,
               GatedDeltaOptions o = {}) {
  TensorList leaves;
  for (const Tensor& x : in) leaves.push_back(x.detach().set_requires_grad());
  Tape tape;
  o.state = leaves[5];
  const GatedDelta r = form(leaves[0], leaves[1], leaves[2], leaves[3], leaves[4], o);
  const Tensor loss =
      add(mul(cast(r.y, dstate.dtype()), dy.to(dstate.dtype())).sum(), mul(r.state, dstate).sum());
  TensorList out{r.y, r.state};
  for (const Tensor& d : tape.gradients(loss, leaves)) out.push_back(d);
  return out;
}

const Tensor kCu = Tensor::of({0, 3, 3, 70, 71, 140}, {6}, DType::i32);

}  // namespace

TEST_CASE("G1 gated_delta: the worked example in forward and backward") {
  const auto row = [](std::initializer_list<double> v) { return Tensor::of(v, {1, 3, 1, 2}); };
  const auto gate = [](std::initializer_list<double> v) { return Tensor::of(v, {1, 3, 1}); };
  const auto wide = [](const Tensor& t) { return t.to(DType::f64); };
  const Tensor decay = wide(gate({1, 1, 0}));
  const TensorList in{wide(row({1, 0, 0, 1, 1, 1})), Tensor::full({1, 3, 1, 2}, 0, DType::f64),
                      wide(row({1, 2, 3, -1, .5, .5})), log(mul(add(decay, 1), 0.25)),
                      wide(gate({1, .5, .25}))};
  const Tensor k = in[1];
  const double keys[] = {1, 0, .6, .8, 0, 1};
  std::copy_n(keys, 6, k.data<double>());
  const Tensor none = Tensor::zeros({1, 1, 2, 2}, DType::f64);
  for (Form* form : {&gated_delta, &gated_delta_recurrent}) {
    const TensorList got = run(form, {in[0], in[1], in[2], in[3], in[4], none},
                               Tensor::ones({1, 3, 1, 2}, DType::f64), none, {.scale = 1});
    const auto is = [&](int i, std::initializer_list<double> want) {
      const Tensor flat = got[i].reshape({-1});
      Tensor expected = Tensor::empty(flat.shape(), DType::f64);
      std::copy(want.begin(), want.end(), expected.data<double>());
      CHECK(mismatch(flat, expected, 1e-9) == "");
    };
    is(0, {1, 2, 1.08, -.64, .655, .135});
    is(1, {.3275, .13, .3275, .005});
    is(2, {3, 0, 1.83, .44, .4575, .3325});
    is(3, {2.88, 1.12125, -.6875, .653125, .108125, .195});
    is(4, {.96, .96, .55, .55, .25, .25});
    is(5, {0, -.12, .54});
    is(6, {2.88, 1.21, .89});
  }
}

TEST_CASE(
    "G2 gated_delta: the chunked form equals the sequential one in all outputs and gradients") {
  for (const std::int64_t tokens : {1, 63, 64, 65, 200})
    for (const Decay decay : {Decay::weak, Decay::strong, Decay::mixed})
      for (const Sizes& s : {Sizes{1, tokens, 1, 2, 16, 24}, Sizes{2, tokens, 1, 1, 5, 3}}) {
        CAPTURE(tokens);
        CAPTURE(static_cast<int>(decay));
        const TensorList in = operands(s, decay);
        const Tensor dy = random(in[2].shape(), 7), dstate = random(in[5].shape(), 8);
        const TensorList want = run(&gated_delta_recurrent, in, dy, dstate);
        const TensorList f64 = run(&gated_delta, in, dy, dstate);
        // The same numbers rounded to f32 and computed in f64.
        TensorList narrow, rounded;
        for (const Tensor& t : in) {
          narrow.push_back(t.to(DType::f32));
          rounded.push_back(narrow[narrow.size() - 1].to(DType::f64));
        }
        const Tensor dy32 = dy.to(DType::f32), ds32 = dstate.to(DType::f32);
        const TensorList want32 =
            run(&gated_delta_recurrent, rounded, dy32.to(DType::f64), ds32.to(DType::f64));
        const TensorList f32 = run(&gated_delta, narrow, dy32, ds32);
        for (int i = 0; i < 8; ++i) {
          CAPTURE(i);
          CHECK(mismatch(f64[i], want[i], 1e-12) == "");
          CHECK(mismatch(f32[i], want32[i], 1e-5) == "");
        }
      }
}

TEST_CASE("gated_delta: gradients match finite differences") {
  for (Form* form : {&gated_delta, &gated_delta_recurrent})
    for (const Sizes& s : {Sizes{2, 3, 1, 2, 3, 2}, Sizes{1, 67, 1, 1, 2, 1}}) {
      if (form == &gated_delta_recurrent && s.tokens > 3) continue;
      const TensorList in = operands(s, Decay::weak);
      CHECK(gradcheck(
                [=](const TensorList& x) {
                  const GatedDelta r = form(x[0], x[1], x[2], x[3], x[4], {.state = x[5]});
                  return add(r.y.sum({1}), r.state.sum({2}));
                },
                in) == "");
      TensorList gaps;
      for (const Tensor& x : in) gaps.push_back(test::strided(x));
      CHECK(gradcheck(
                [=](const TensorList& x) {
                  return form(x[0], x[1], x[2], x[3], x[4], {}).y.transpose(1, 2);
                },
                gaps) == "");
    }
  const auto plain = [](const TensorList& x) {
    return gated_delta(x[0], x[0], x[0], neg(square(x[1])), x[1]).y;
  };
  CHECK(gradcheck(plain, {random({1, 4, 2, 3}, 1), random({1, 4, 2}, 2)}) == "");
  const auto spelled = [](const TensorList& x) {
    return gated_delta_recurrent(x[0], x[0], x[0], neg(square(x[1])), x[1]).y;
  };
  CHECK(gradcheck(spelled, {random({1, 2, 1, 2}, 1), random({1, 2, 1}, 2)},
                  {.second_order = true}) == "");
}

TEST_CASE("gated_delta: a reset, and decays of any size, equal the recurrence") {
  for (const DType t : {DType::f64, DType::f32})
    for (const double reset : {-std::numeric_limits<double>::infinity(), -1e30, -1e6, -800.0}) {
      CAPTURE(reset);
      const TensorList in = operands({1, 130, 1, 2, 3, 4}, Decay::weak, t);
      for (const std::int64_t token : {0, 5, 6, 63, 64, 100})
        in[3].narrow(1, token, 1).fill_(reset);
      const Tensor dy = random(in[2].shape(), 7, t), dstate = random(in[5].shape(), 8, t);
      const TensorList got = run(&gated_delta, in, dy, dstate),
                       want = run(&gated_delta_recurrent, in, dy, dstate);
      for (int i = 0; i < want.size(); ++i) {
        CAPTURE(i);
        CHECK(mismatch(got[i], want[i], t == DType::f64 ? 1e-10 : 1e-4) == "");
      }
      // Nothing passes a reset, exactly.
      for (const std::int64_t token : {0, 5, 6, 63, 64, 100})
        CHECK(abs(got[5].narrow(1, token, 1)).max().item() == 0);
    }
}

TEST_CASE("gated_delta: packed sequences give the bits of separate ones") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const TensorList in = operands({1, 140, 1, 2, 8, 8}, Decay::weak, t);
    const Tensor dy = random(in[2].shape(), 7, t), states = random({5, 2, 8, 8}, 9, in[5].dtype());
    const Tensor dstates = random(states.shape(), 10, in[5].dtype());
    const TensorList packed = run(&gated_delta, {in[0], in[1], in[2], in[3], in[4], states}, dy,
                                  dstates, {.cu_seqlens = kCu});
    const std::int32_t* border = kCu.data<std::int32_t>();
    for (int i = 0; i < 5; ++i) {
      const std::int64_t from = border[i], n = border[i + 1] - from;
      TensorList part;
      for (int j = 0; j < 5; ++j) part.push_back(in[j].narrow(1, from, n));
      part.push_back(states.narrow(0, i, 1));
      const TensorList alone =
          run(&gated_delta, part, dy.narrow(1, from, n), dstates.narrow(0, i, 1));
      for (int j = 0; j < 8; ++j) {
        const bool of_state = j == 1 || j == 7;
        CHECK(different_bits(of_state ? packed[j].narrow(0, i, 1) : packed[j].narrow(1, from, n),
                             alone[j]) == "");
      }
    }
  }
  const TensorList in = operands({1, 140, 1, 2, 4, 3}, Decay::weak);
  const GatedDeltaOptions o{.cu_seqlens = kCu};
  const GatedDelta a = gated_delta(in[0], in[1], in[2], in[3], in[4], o);
  const GatedDelta b = gated_delta_recurrent(in[0], in[1], in[2], in[3], in[4], o);
  CHECK(mismatch(a.y, b.y, 1e-12) == "");
  CHECK(mismatch(a.state, b.state, 1e-12) == "");
}

TEST_CASE("gated_delta: two calls connected by the state equal one call") {
  const TensorList in = operands({2, 70, 1, 2, 4, 3}, Decay::weak);
  const GatedDelta whole = gated_delta(in[0], in[1], in[2], in[3], in[4], {.state = in[5]});
  Tensor state = in[5];
  for (const auto& [from, n] : {std::pair{0, 66}, {66, 1}, {67, 3}}) {
    const auto part = [&](int i) { return in[i].narrow(1, from, n); };
    const GatedDelta r = gated_delta(part(0), part(1), part(2), part(3), part(4), {.state = state});
    CHECK(mismatch(r.y, whole.y.narrow(1, from, n), 1e-13) == "");
    state = r.state;
  }
  CHECK(mismatch(state, whole.state, 1e-13) == "");
}

TEST_CASE("gated_delta: bf16, threads, zero tokens and meta device") {
  const Sizes s{3, 100, 2, 4, 16, 8};
  const TensorList in = operands(s, Decay::weak, DType::bf16);
  const Tensor dy = random(in[2].shape(), 7, DType::bf16);
  const Tensor dstate = random(in[5].shape(), 8, DType::f32);
  TensorList wide;
  for (const Tensor& x : in) wide.push_back(x.to(DType::f64));
  const TensorList want = run(&gated_delta, wide, dy.to(DType::f64), dstate.to(DType::f64));
  const test::RestoreThreads restore;
  set_num_threads(1);
  const TensorList one = run(&gated_delta, in, dy, dstate);
  set_num_threads(3);
  const TensorList three = run(&gated_delta, in, dy, dstate);
  for (int i = 0; i < 8; ++i) {
    CHECK(mismatch(one[i], want[i], test::tolerance(DType::bf16)) == "");
    CHECK(different_bits(one[i], three[i]) == "");
  }
  CHECK(one[2].dtype() == DType::bf16);
  CHECK(one[5].dtype() == DType::f32);

  for (const Sizes& none : {Sizes{2, 0, 1, 2, 3, 4}, Sizes{0, 5, 1, 2, 3, 4}}) {
    const TensorList x = operands(none, Decay::weak);
    const TensorList r = run(&gated_delta, x, zeros_like(x[2]), random(x[5].shape(), 3));
    CHECK(different_bits(r[1], x[5]) == "");
    CHECK(different_bits(r[7], random(x[5].shape(), 3)) == "");
  }
  const auto meta = [](const Shape& shape, DType t) { return Tensor::empty(shape, t, kMeta); };
  for (Form* form : {&gated_delta, &gated_delta_recurrent}) {
    const Tensor g = meta({2, 5, 4}, DType::f32), q = meta({2, 5, 2, 3}, DType::bf16);
    const GatedDelta r = form(q, q, meta({2, 5, 4, 6}, DType::bf16), g, g, {});
    CHECK(r.y.shape() == Shape{2, 5, 4, 6});
    CHECK(r.y.dtype() == DType::bf16);
    CHECK(r.state.shape() == Shape{2, 4, 3, 6});
    CHECK(r.state.dtype() == DType::f32);
  }
}

TEST_CASE("gated_delta: errors name the rule") {
  const Tensor q = random({1, 4, 2, 3}), v = random({1, 4, 4, 5}), g = random({1, 4, 4});
  const auto text = [](const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d,
                       const Tensor& e, const GatedDeltaOptions& o = {}) {
    return error_of([&] { gated_delta(a, b, c, d, e, o); });
  };
  CHECK(text(q, {}, v, g, g) == "gated_delta: k must be a tensor, got a null handle");
  CHECK(text(q.to(DType::i32), q, v, g, g) ==
        "gated_delta: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(text(q, random({1, 4, 2, 4}), v, g, g) ==
        "gated_delta: q and k must have one shape (batch, tokens, key heads, key dim), got "
        "[1, 4, 2, 3] and [1, 4, 2, 4]");
  CHECK(text(q, q, random({1, 3, 4, 5}), g, g) ==
        "gated_delta: v must have shape (batch 1, tokens 4, value heads, value dim), got "
        "[1, 3, 4, 5]");
  CHECK(text(q, q, random({1, 4, 3, 5}), g, g) ==
        "gated_delta: value heads 3 must be a multiple of key heads 2");
  CHECK(text(q, q, random({1, 4, 4, 0}), g, g) ==
        "gated_delta: key dim and value dim must be at least 1, got 3 and 0");
  CHECK(text(q, q, v, g, random({1, 4, 2})) ==
        "gated_delta: g and beta must have shape [1, 4, 4], got [1, 4, 4] and [1, 4, 2]");
  CHECK(text(q, q, v.to(DType::f32), g, g) ==
        "gated_delta: q, k and v must have one dtype, got f64, f64 and f32");
  CHECK(text(q, q, v, g, g.to(DType::f32)) ==
        "gated_delta: g and beta must have dtype f64 with q f64, got f64 and f32");
  CHECK(text(q, q, Tensor::empty({1, 4, 4, 5}, DType::f64, kMeta), g, g) ==
        "gated_delta: all operands must be on device cpu like q, got meta");
  CHECK(text(q, q, v, g, g, {.state = random({1, 2, 3, 5})}) ==
        "gated_delta: state must be f64 [1, 4, 3, 5] on cpu, got f64 [1, 2, 3, 5] on cpu");
  CHECK(text(q, q, v, g, g, {.cu_seqlens = Tensor::of({0, 3}, {2}, DType::i32)}) ==
        "gated_delta: cu_seqlens must end at the number of tokens 4, got 3");
  CHECK(text(random({2, 4, 2, 3}), random({2, 4, 2, 3}), random({2, 4, 4, 5}), random({2, 4, 4}),
             random({2, 4, 4}), {.cu_seqlens = kCu}) ==
        "gated_delta: with cu_seqlens q must be one row, got [2, 4, 2, 3]");
  CHECK(error_of([&] {
          gated_delta_recurrent(q, q, random({1, 4, 3, 5}), g, g);
        }) == "gated_delta_recurrent: value heads 3 must be a multiple of key heads 2");
}

}  // namespace weft::gated_delta_test
