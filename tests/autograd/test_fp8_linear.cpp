#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/fp8_linear.h"
#include "weft/autograd/grouped_linear.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/reduce.h"
#include "weft/core/allocator.h"
#include "weft/tests/support.h"

namespace weft::fp8_linear_test {

namespace {

using fp8::BackwardOverride;
using fp8::Recipe;
using fp8::Scaling;
using test::different_bits;
using test::error_of;
using test::mismatch;
using test::random;

constexpr std::int64_t kRows = 48, kIn = 160, kOut = 32;

// A state with delayed scales that have seen the operands.
fp8::LayerState state_for(const Recipe& r) {
  fp8::LayerState s;
  if (r.scaling != Scaling::delayed) return s;
  s.delayed = {Tensor::zeros({r.history, 3}), Tensor::zeros({3})};
  s.delayed.scale.copy_(Tensor::of({90, 900, 9000}));
  return s;
}

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all = {{.scaling = Scaling::current},
                                          {.scaling = Scaling::current, .power_of_two = true},
                                          {.scaling = Scaling::delayed, .history = 4},
                                          {.scaling = Scaling::block}};
  return all;
}

struct Operands {
  Tensor x, weight, bias, dy;
  explicit Operands(DType t)
      : x(random({2, kRows / 2, kIn}, 1).to(t)),
        weight(mul(random({kOut, kIn}, 2), 0.1).to(t)),
        bias(random({kOut}, 3).to(t)),
        dy(mul(random({2, kRows / 2, kOut}, 4), 1e-4).to(t)) {
    for (Tensor* p : {&x, &weight, &bias}) p->set_requires_grad();
  }
};

// What the operands are rounded to, as f64: the rule of each recipe in public terms.
Tensor rounded(const Recipe& r, const Tensor& t, DType to, Fp8Tile tile, double delayed_scale) {
  const Tensor m = t.detach().reshape({t.numel() / t.dim(-1), t.dim(-1)}).contiguous();
  const RowGroups all{.each = m.dim(0)};
  fp8::Quantized q;
  if (r.scaling == Scaling::block) {
    q = fp8::quantize_tiles(m, all, to, tile, r.numbers());
  } else if (r.scaling == Scaling::delayed) {
    return mul(mul(m.to(DType::f32), delayed_scale).to(to).to(DType::f64), 1 / delayed_scale);
  } else {
    q = fp8::quantize(m, all, to, r.numbers());
  }
  return fp8::dequantize(q, all, DType::f32).to(DType::f64);
}

struct Result {
  Tensor y, dx, dw, db;
};

Result run(const Recipe& r, const Operands& o, const fp8::LayerState* state) {
  Tape tape;
  const Tensor y = fp8_linear(o.x, o.weight, o.bias, r, state);
  const TensorList g = tape.gradients(y, {o.x, o.weight, o.bias}, o.dy);
  return {y.detach(), g[0], g[1], g[2]};
}

double tolerance_of(DType t) { return t == DType::f32 ? 1e-5 : 8e-3; }

}  // namespace

TEST_CASE("fp8_linear: results and gradients are those of the rounded operands") {
  for (const DType t : {DType::f32, DType::bf16})
    for (const Recipe& r : recipes()) {
      CAPTURE(static_cast<int>(r.scaling));
      CAPTURE(r.power_of_two);
      CAPTURE(std::string(name(t)));
      const Operands o(t);
      const fp8::LayerState state = state_for(r);
      const Result got = run(r, o, &state);
      const Tensor x = rounded(r, o.x, DType::e4m3, {1, 128}, 90),
                   w = rounded(r, o.weight, DType::e4m3, {128, 128}, 900),
                   g = rounded(r, o.dy, DType::e5m2, {1, 128}, 9000);
      const bool block = r.scaling == Scaling::block;
      const Tensor x_of_dw = block ? rounded(r, o.x, DType::e4m3, {128, 1}, 0) : x,
                   g_of_dw = block ? rounded(r, o.dy, DType::e5m2, {128, 1}, 0) : g;
      const double tol = tolerance_of(t);
      CHECK(mismatch(got.y.view({kRows, kOut}), matmul(x, w.t()) + o.bias.detach().to(DType::f64),
                     tol) == "");
      CHECK(mismatch(got.dx.view({kRows, kIn}), matmul(g, w), tol) == "");
      CHECK(mismatch(got.dw, matmul(g_of_dw.t(), x_of_dw), tol) == "");
      CHECK(mismatch(got.db, sum(o.dy.to(DType::f64), {0, 1}), tol) == "");
    }
}

TEST_CASE("fp8_linear: the two overrides of backward") {
  for (const DType t : {DType::f32, DType::bf16})
    for (Recipe r : recipes()) {
      CAPTURE(static_cast<int>(r.scaling));
      const Operands o(t);
      const Tensor dy = o.dy.detach().to(DType::f64).view({kRows, kOut});
      const double tol = tolerance_of(t);
      const fp8::LayerState state = state_for(r);
      r.backward = BackwardOverride::high_precision;
      const Result high = run(r, o, &state);
      CHECK(mismatch(high.dx.view({kRows, kIn}), matmul(dy, o.weight.detach().to(DType::f64)),
                     tol) == "");
      CHECK(mismatch(high.dw, matmul(dy.t(), o.x.detach().to(DType::f64).view({kRows, kIn})),
                     tol) == "");
      r.backward = BackwardOverride::dequantized;
      const Result seen = run(r, o, &state);
      CHECK(different_bits(seen.y, high.y) == "");
      const Tensor w = rounded(r, o.weight, DType::e4m3, {128, 128}, 900),
                   x = rounded(r, o.x, DType::e4m3, {1, 128}, 90);
      // The numbers that codes stand for are rounded to the layer's dtype.
      CHECK(mismatch(seen.dx.view({kRows, kIn}), matmul(dy, w), 2 * tol) == "");
      CHECK(mismatch(seen.dw, matmul(dy.t(), x), 2 * tol) == "");
    }
}

TEST_CASE("fp8_linear: the weight gradient adds to main_grad without rounding to bf16") {
  const Recipe r;
  Operands o(DType::bf16);
  const Tensor main = Tensor::ones({kOut, kIn});
  o.weight.set_main_grad(main);
  o.weight.set_main_grad_filled(true);
  const Tensor x = rounded(r, o.x, DType::e4m3, {}, 0), g = rounded(r, o.dy, DType::e5m2, {}, 0);
  for (int pass = 1; pass <= 2; ++pass) {
    Tape tape;
    sum(mul(fp8_linear(o.x, o.weight, o.bias, r), o.dy)).backward();
    CHECK(mismatch(main, Tensor::ones({kOut, kIn}, DType::f64) + matmul(g.t(), x) * pass, 1e-6) ==
          "");
  }
}

TEST_CASE("fp8_linear: threads that share a layer round its weight once") {
  const Operands o(DType::f32);
  const fp8::LayerState state;
  const Tensor expected = fp8_linear(o.x, o.weight, o.bias, {}).detach();
  for (int round = 0; round < 100; ++round) {
    state.weight.clear();
    std::atomic<int> waiting{4}, wrong{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        const Tensor y = fp8_linear(o.x, o.weight, o.bias, {}, &state);
        if (!different_bits(y, expected).empty()) ++wrong;
      });
    for (std::thread& t : threads) t.join();
    CHECK(wrong == 0);
  }
}

TEST_CASE("fp8_linear: a weight is rounded once until it is written") {
  const Recipe r;
  Operands o(DType::f32);
  const fp8::LayerState state;
  int made = 0;
  const auto fresh = [&] {
    made = 0;
    state.weight.get(o.weight, 1, false, [&] {
      ++made;
      return fp8::quantize(o.weight.detach(), {.each = kOut}, DType::e4m3, {});
    });
  };
  fresh();
  CHECK(made == 1);
  fresh();
  CHECK(made == 0);
  {
    const NoGradGuard off;
    o.weight.mul_(2);
  }
  fresh();
  CHECK(made == 1);
  fp8::WeightCache other = state.weight;  // another module's cache starts empty
  made = 0;
  other.get(o.weight, 1, false, [&] {
    ++made;
    return fp8::Quantized{};
  });
  CHECK(made == 1);
  // The op sees the new weight.
  const Result after = run(r, o, &state), without = run(r, o, nullptr);
  CHECK(different_bits(after.y, without.y) == "");
  CHECK(different_bits(after.dx, without.dx) == "");
}

TEST_CASE("fp8_grouped_linear: every expert as a layer of its own, empty ones too") {
  const Tensor rows = Tensor::of({32, 0, 16}, {3}, DType::i64);
  for (const DType t : {DType::f32, DType::bf16})
    for (const Recipe& r : recipes()) {
      CAPTURE(static_cast<int>(r.scaling));
      Tensor x = random({48, 32}, 1).to(t), w = mul(random({3, 16, 32}, 2), 0.1).to(t);
      const Tensor dy = mul(random({48, 16}, 3), 1e-3).to(t);
      x.set_requires_grad();
      w.set_requires_grad();
      const fp8::LayerState state = state_for(r);
      Tape tape;
      const Tensor y = fp8_grouped_linear(x, w, rows, r, &state);
      const TensorList g = tape.gradients(y, {x, w}, dy);
      std::int64_t first = 0;
      for (std::int64_t e = 0; e < 3; ++e) {
        const std::int64_t n = rows.data<std::int64_t>()[e];
        Tensor xe = x.detach().narrow(0, first, n).clone(), we = w.detach().select(0, e).clone();
        xe.set_requires_grad();
        we.set_requires_grad();
        Tape own;
        const Tensor ye = fp8_linear(xe, we, {}, r, &state);
        const TensorList ge = own.gradients(ye, {xe, we}, dy.narrow(0, first, n));
        // Other tiles of the product may sum in another order.
        const double tol = t == DType::f32 ? 1e-5 : 1e-2;
        CHECK(mismatch(y.narrow(0, first, n), ye, tol) == "");
        CHECK(mismatch(g[0].narrow(0, first, n), ge[0], tol) == "");
        CHECK(mismatch(g[1].select(0, e), ge[1], tol) == "");
        first += n;
      }
    }
}

TEST_CASE("fp8_linear: a bias and rows in any layout") {
  const Tensor x = random({48, 32}, 1, DType::f32), w = random({3, 16, 32}, 2, DType::f32);
  const Tensor bias = random({16}, 3, DType::f32), one = w.select(0, 0);
  CHECK(different_bits(fp8_linear(x, one, test::strided(bias), {}), fp8_linear(x, one, bias, {})) ==
        "");
  const Tensor gaps = Tensor::of({32, 7, 0, 7, 16, 7}, {6}, DType::i64).slice(0, 0, 6, 2);
  const auto grads = [&](const Tensor& rows) {
    const Tensor a = x.detach().set_requires_grad(), b = w.detach().set_requires_grad();
    Tape tape;
    return tape.gradients(fp8_grouped_linear(a, b, rows, {}), {a, b},
                          random({48, 16}, 4, DType::f32));
  };
  const TensorList got = grads(gaps), want = grads(gaps.clone());
  for (int i = 0; i < 2; ++i) CHECK(different_bits(got[i], want[i]) == "");
}

TEST_CASE("fp8_linear: recomputed regions give the same bits, also after the scope has ended") {
  const Operands o(DType::bf16);
  const auto gradients = [&](bool again, bool ends) {
    fp8::LayerState state;
    state.delayed = {Tensor::zeros({4, 3}), Tensor::zeros({3})};
    const Recipe r{.scaling = Scaling::delayed, .history = 4};
    const auto layer = [&](const Tensor& x) {
      const Recipe* const now = fp8::Autocast::current();
      return now ? fp8_linear(x, o.weight, o.bias, *now, &state) : linear(x, o.weight, o.bias);
    };
    Tape tape;
    Tensor y;
    std::optional<fp8::Autocast> scope;
    scope.emplace(r);
    y = again ? recompute(layer, o.x) : layer(o.x);
    if (ends) scope.reset();
    const TensorList g = tape.gradients(y, {o.x, o.weight}, o.dy);
    return TensorList{y.detach(), g[0], g[1], state.delayed.history};
  };
  const TensorList plain = gradients(false, false);
  for (const bool ends : {false, true}) {
    const TensorList other = gradients(true, ends);
    for (int i = 0; i < plain.size(); ++i) CHECK(different_bits(other[i], plain[i]) == "");
  }
}

TEST_CASE("fp8: scopes nest") {
  using fp8::Autocast;
  CHECK(Autocast::current() == nullptr);
  const Autocast outer(Recipe{.margin = 3});
  CHECK(Autocast::current()->margin == 3);
  {
    const Autocast off(std::nullopt);
    CHECK(Autocast::current() == nullptr);
    const Autocast inner(Recipe{.margin = 4});
    CHECK(Autocast::current()->margin == 4);
  }
  CHECK(Autocast::current()->margin == 3);
}

TEST_CASE("fp8_linear: backward keeps one byte per number") {
  const Recipe r;
  Operands o(DType::bf16);
  const auto kept = [&](const auto& layer) {
    Tape tape;
    const Tensor y = layer();
    const std::int64_t with = memory_stats(kCpu).live_bytes;
    return with;
  };
  const std::int64_t before = memory_stats(kCpu).live_bytes;
  const auto y_bytes = static_cast<std::int64_t>(kRows * kOut * 2);
  const std::int64_t fp8 = kept([&] { return fp8_linear(o.x, o.weight, o.bias, r); }) - before;
  CHECK(fp8 >= y_bytes + kRows * kIn + kOut * kIn);
  CHECK(fp8 < y_bytes + kRows * kIn + kOut * kIn + 4096);
}

TEST_CASE("fp8_linear: errors") {
  const Recipe r;
  const auto call = [&](const Tensor& x, const Tensor& w, const Tensor& b = {},
                        const Recipe& how = {}) {
    return error_of([&] { fp8_linear(x, w, b, how); });
  };
  const auto f32 = [](const Shape& s) { return random(s, 1, DType::f32); };
  CHECK(call(f32({16, 24}), f32({16, 24})) ==
        "fp8_linear: FP8 needs widths that are multiples of 16, got 24 inputs and 16 outputs");
  CHECK(call(f32({24, 16}), f32({16, 16})) ==
        "fp8_linear: FP8 needs rows of x that are a multiple of 16, got 24");
  CHECK(call(random({16, 16}), random({16, 16})) ==
        "fp8_linear: FP8 products need f32 or bf16 tensors, got f64");
  CHECK(call(f32({16, 16}), random({16, 16}, 1, DType::bf16)) ==
        "fp8_linear: weight must have the dtype of x, f32, got bf16");
  CHECK(call(f32({16, 16}), f32({16, 32})) ==
        "fp8_linear: weight must have shape [N, K] for x [..., K], got [16, 32] and [16, 16]");
  CHECK(call(f32({16, 16}), f32({16, 16}), f32({8})) ==
        "fp8_linear: bias must be f32 with shape [16] on cpu, got f32 with shape [8]");
  CHECK(call({}, f32({16, 16})) == "fp8_linear: x must be a tensor, got a null handle");
  CHECK(call(f32({16, 16}), f32({16, 16}), {}, {.scaling = Scaling::delayed}) ==
        "fp8_linear: delayed scales need a layer that keeps them, and this one does not; call "
        "nn::prepare_fp8(model, recipe) first");
  const auto grouped = [&](const Tensor& x, const Tensor& w, const Tensor& rows) {
    return error_of([&] { fp8_grouped_linear(x, w, rows, r); });
  };
  const Tensor w = f32({2, 16, 16});
  CHECK(grouped(f32({40, 16}), w, Tensor::of({16, 24}, {2}, DType::i64)) ==
        "fp8_grouped_linear: FP8 needs rows of x that are a multiple of 16, got 24");
  CHECK(grouped(f32({40, 16}), w, Tensor::of({16, 16}, {2}, DType::i64)) ==
        "fp8_grouped_linear: rows must sum to the 40 rows of x, got 32");
  CHECK(grouped(f32({32, 16}), w, Tensor::of({32}, {1}, DType::i64)) ==
        "fp8_grouped_linear: rows must be i64 with shape [2] on cpu, got i64 with shape [1]");
  CHECK(grouped(f32({32, 16}), w, Tensor::of({48, -16}, {2}, DType::i64)) ==
        "fp8_grouped_linear: rows must be at least 0, got -16 for group 1");
}

TEST_CASE("fp8_linear: no second derivative") {
  const Operands o(DType::f32);
  Tape outer;
  Tape inner;
  const Tensor y = fp8_linear(o.x, o.weight, o.bias, {});
  CHECK(error_of([&] { inner.gradients(y, {o.x}, o.dy); }).find("fp8_linear") != std::string::npos);
}

}  // namespace weft::fp8_linear_test
