#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/indexing.h"
#include "weft/autograd/matmul.h"
#include "weft/autograd/softmax.h"
#include "weft/core/allocator.h"
#include "weft/core/parallel.h"
#include "weft/tests/attention_support.h"

namespace weft::attention_test {

namespace {

// Softmax attention by definition, one query at a time, in f64.
Tensor by_definition(const TensorList& in, const AttentionOptions& o) {
  const Tensor q = in[0].to(DType::f64), k = in[1].to(DType::f64), v = in[2].to(DType::f64);
  const std::int64_t B = q.dim(0), T = q.dim(1), H = q.dim(2), D = q.dim(3), S = k.dim(1);
  const std::int64_t G = k.dim(2), V = v.dim(3);
  std::vector<double> a(static_cast<std::size_t>(q.numel())),
      x(static_cast<std::size_t>(k.numel()));
  std::vector<double> z(static_cast<std::size_t>(v.numel()));
  std::vector<double> y(static_cast<std::size_t>(B * T * H * V));
  q.copy_to(a);
  k.copy_to(x);
  v.copy_to(z);
  std::vector<std::int64_t> sequence(static_cast<std::size_t>(T));
  if (o.cu_seqlens.defined())
    for (std::int64_t i = 0; i + 1 < o.cu_seqlens.dim(0); ++i)
      for (auto t = o.cu_seqlens.data<std::int32_t>()[i];
           t < o.cu_seqlens.data<std::int32_t>()[i + 1]; ++t)
        sequence[static_cast<std::size_t>(t)] = i;
  const double scale = o.scale != 0 ? o.scale : 1 / std::sqrt(double(D));
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t h = 0; h < H; ++h)
      for (std::int64_t t = 0; t < T; ++t) {
        const double* qt = &a[static_cast<std::size_t>(((b * T + t) * H + h) * D)];
        const auto key = [&](std::int64_t s) {
          return static_cast<std::size_t>(((b * S + s) * G + h * G / H) * D);
        };
        const auto value = [&](std::int64_t s) {
          return static_cast<std::size_t>(((b * S + s) * G + h * G / H) * V);
        };
        std::vector<double> score(static_cast<std::size_t>(S), -INFINITY);
        double high = -INFINITY, sum = 0;
        for (std::int64_t s = 0; s < S; ++s) {
          const std::int64_t last = t + S - T;
          if (o.causal && (s > last || (o.window && s <= last - o.window))) continue;
          if (o.cu_seqlens.defined() &&
              sequence[static_cast<std::size_t>(s)] != sequence[static_cast<std::size_t>(t)])
            continue;
          double dot = 0;
          for (std::int64_t d = 0; d < D; ++d)
            dot += qt[d] * x[key(s) + static_cast<std::size_t>(d)];
          high = std::max(high, score[static_cast<std::size_t>(s)] = dot * scale);
        }
        for (double& w : score) sum += w = w == -INFINITY ? 0 : std::exp(w - high);
        if (sum == 0) continue;
        for (std::int64_t s = 0; s < S; ++s)
          for (std::int64_t d = 0; d < V; ++d)
            y[static_cast<std::size_t>(((b * T + t) * H + h) * V + d)] +=
                score[static_cast<std::size_t>(s)] / sum *
                z[value(s) + static_cast<std::size_t>(d)];
      }
  return Tensor::from<double>(y, {B, T, H, V});
}

// The same attention from primitive ops, which have gradients of their own.
Tensor from_primitives(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  const std::int64_t B = q.dim(0), T = q.dim(1), H = q.dim(2), S = k.dim(1), G = k.dim(2);
  const auto by_heads = [&](const Tensor& x, std::int64_t share) {
    return reshape(permute(x, {0, 2, 1, 3}), {B, G, share, x.dim(1), x.dim(3)});
  };
  Tensor score = mul(matmul(by_heads(q, H / G), transpose(by_heads(k, 1), -2, -1)),
                     1 / std::sqrt(double(q.dim(3))));
  if (causal)  // keys after the last one that a query sees
    score = add(score, mul(triu(Tensor::ones({T, S}, q.dtype()), S - T + 1), -1e30));
  const Tensor y = matmul(softmax(score), by_heads(v, 1));
  return permute(reshape(y, {B, H, T, v.dim(3)}), {0, 2, 1, 3});
}

// One key, odd sizes, grouped, multi-query, more and fewer keys than queries, larger than the
// blocks of queries and keys, no queries, no keys, no batch.
const Sizes kSizes[] = {{1, 1, 1, 1, 1, 1},   {2, 5, 5, 2, 2, 3},    {1, 7, 7, 6, 2, 4},
                        {2, 6, 6, 4, 1, 5},   {1, 3, 9, 2, 2, 4},    {1, 9, 3, 2, 1, 4},
                        {1, 70, 70, 2, 1, 7}, {1, 67, 301, 2, 2, 8}, {1, 290, 301, 2, 1, 4},
                        {2, 0, 4, 2, 2, 4},   {2, 4, 0, 2, 1, 4},    {0, 4, 4, 2, 2, 4}};
const AttentionOptions kOptions[] = {{},
                                     {.causal = true},
                                     {.causal = true, .window = 1},
                                     {.causal = true, .window = 5},
                                     {.scale = 0.3},
                                     {.scale = -0.5}};

}  // namespace

TEST_CASE("attention: agrees with the definition for every mask, shape and dtype") {
  for (const Sizes& z : kSizes)
    for (const AttentionOptions& o : kOptions)
      for (DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        const TensorList in = inputs(z, t);
        CAPTURE(message("q {}, k {}, causal {}, window {}, scale {}, {}", in[0].shape(),
                        in[1].shape(), o.causal ? 1 : 0, o.window, o.scale, t));
        const Tensor y = op(o)(in);
        CHECK(y.dtype() == t);
        CHECK(test::mismatch(y, by_definition(in, o), test::tolerance(t)) == "");
      }
}

TEST_CASE("attention: values narrower and wider than queries and keys") {
  for (const std::int64_t width : {1, 5, 40, 150})
    for (const AttentionOptions& o :
         {AttentionOptions{}, {.causal = true}, {.causal = true, .window = 30}}) {
      CAPTURE(width);
      for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
        TensorList in = inputs({2, 70, 70, 4, 2, 17}, t);
        in[2] = test::random({2, 70, 2, width}, 3, t);
        CHECK(test::mismatch(op(o)(in), by_definition(in, o), test::tolerance(t)) == "");
      }
    }
  for (const std::int64_t width : {1, 4})
    CHECK(gradcheck(op({.causal = true}),
                    {test::random({1, 5, 2, 3}, 1), test::random({1, 5, 1, 3}, 2),
                     test::random({1, 5, 1, width}, 3)}) == "");
  AttentionOptions packed{.causal = true};
  packed.cu_seqlens = Tensor::of({0, 2, 2, 5}, {4}, DType::i32);
  CHECK(gradcheck(op(packed), {test::random({1, 5, 2, 3}, 1), test::random({1, 5, 2, 3}, 2),
                               test::strided(test::random({1, 5, 2, 2}, 3))}) == "");
}

TEST_CASE("attention: heads wider than 128") {
  // Their dot products are sums of pieces of 128 elements.
  for (const std::int64_t width : {129, 150, 200, 257})
    for (const bool causal : {false, true}) {
      CAPTURE(message("width {}, causal {}", width, causal));
      const AttentionOptions o{.causal = causal};
      TensorList in = inputs({2, 33, 40, 4, 2, width});
      in[2] = test::random({2, 40, 2, 150}, 3);
      const Tensor dy = test::random({2, 33, 4, 150}, 9);
      TensorList leaves;
      for (const Tensor& x : in) leaves.push_back(x.detach().set_requires_grad());
      Tape tape;
      const Tensor y = from_primitives(leaves[0], leaves[1], leaves[2], causal);
      const TensorList want = tape.gradients(y, leaves, dy), got = gradients(in, o, dy);
      CHECK(test::mismatch(op(o)(in), y, test::tolerance(DType::f64)) == "");
      for (int i = 0; i < 3; ++i)
        CHECK(test::mismatch(got[i], want[i], 2 * test::tolerance(DType::f64)) == "");
      for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
        TensorList low, high;
        for (const Tensor& x : in) {
          low.push_back(x.to(t));
          high.push_back(low[low.size() - 1].to(DType::f64));
        }
        const Tensor narrow_dy = dy.to(t);
        CHECK(test::mismatch(op(o)(low), op(o)(high), test::tolerance(t)) == "");
        const TensorList g = gradients(low, o, narrow_dy);
        const TensorList g64 = gradients(high, o, narrow_dy.to(DType::f64));
        for (int i = 0; i < 3; ++i)
          CHECK(test::mismatch(g[i], g64[i], 2 * test::tolerance(t)) == "");
      }
    }
}

TEST_CASE("attention: scores far from 0 neither overflow nor underflow") {
  for (double size : {-200.0, 200.0}) {
    TensorList in = inputs({1, 5, 300, 1, 1, 4}, DType::f32);
    in[0] = Tensor::full(in[0].shape(), size);
    CHECK(test::mismatch(op()(in), by_definition(in, {}), 1e-3) == "");
  }
}

TEST_CASE("attention: packed sequences see only themselves") {
  const TensorList in = inputs({1, 12, 12, 4, 2, 3});
  for (const Tensor& split : {cu({0, 12}), cu({0, 5, 5, 6, 12}), cu({0, 0, 3, 12, 12})})
    for (const AttentionOptions& o : kOptions) {
      AttentionOptions packed = o;
      packed.cu_seqlens = split;
      CHECK(test::mismatch(op(packed)(in), by_definition(in, packed), 1e-12) == "");
    }
  const TensorList wide = inputs({1, 330, 330, 2, 1, 4});
  const AttentionOptions o{.causal = true, .cu_seqlens = cu({0, 70, 330})};
  CHECK(test::mismatch(op(o)(wide), by_definition(wide, o), 1e-12) == "");
  CHECK(op({.cu_seqlens = cu({0})})(inputs({1, 0, 0, 2, 1, 4})).numel() == 0);
}

TEST_CASE("attention: reordering packed sequences reorders their outputs") {
  const TensorList in = inputs({1, 12, 12, 2, 1, 4}, DType::f32);
  TensorList swapped;
  for (const Tensor& t : in) swapped.push_back(cat({t.slice(1, 5), t.slice(1, 0, 5)}, 1));
  const Tensor y = op({.causal = true, .cu_seqlens = cu({0, 5, 12})})(in);
  const Tensor z = op({.causal = true, .cu_seqlens = cu({0, 7, 12})})(swapped);
  CHECK(test::different_bits(cat({y.slice(1, 5), y.slice(1, 0, 5)}, 1), z) == "");
}

TEST_CASE("attention: a change in one packed sequence does not affect another") {
  const AttentionOptions o{.causal = true, .cu_seqlens = cu({0, 5, 12})};
  const TensorList in = inputs({1, 12, 12, 2, 1, 4}, DType::f32);
  const Tensor dy = test::random({1, 12, 2, 4}, 9, DType::f32);
  const Tensor y = op(o)(in);
  const TensorList g = gradients(in, o, dy);
  TensorList changed;
  for (const Tensor& t : in) {
    changed.push_back(t.clone());
    changed[changed.size() - 1].slice(1, 0, 5).fill_(3);
  }
  CHECK(test::different_bits(y.slice(1, 5), op(o)(changed).slice(1, 5)) == "");
  const TensorList h = gradients(changed, o, dy);
  for (int i = 0; i < 3; ++i) {
    CHECK(test::different_bits(g[i].slice(1, 5), h[i].slice(1, 5)) == "");
    CHECK(test::different_bits(g[i].slice(1, 0, 5), h[i].slice(1, 0, 5)) != "");
  }
}

TEST_CASE("attention: gradients match finite differences") {
  for (const Sizes& z : kSizes) {
    if (z.t > 10 || z.s > 10) continue;
    for (const AttentionOptions& o : kOptions) {
      const TensorList in = inputs(z);
      CAPTURE(message("q {}, k {}, causal {}, window {}", in[0].shape(), in[1].shape(),
                      o.causal ? 1 : 0, o.window));
      CHECK(gradcheck(op(o), in) == "");
    }
  }
  const TensorList in = inputs({1, 9, 9, 2, 1, 3});
  CHECK(gradcheck(op({.causal = true, .cu_seqlens = cu({0, 4, 4, 9})}), in) == "");
  CHECK(gradcheck(op(), {test::strided(in[0]), test::strided(in[1]), test::strided(in[2])}) == "");
  CHECK(gradcheck([](const TensorList& x) { return attention(x[0], x[0], x[0], {.causal = true}); },
                  {test::random({1, 6, 2, 3}, 4)}) == "");
}

// Only the undefined-behaviour sanitizer saw the overflow: queries that met it see no key.
TEST_CASE("attention: a window as long as its type allows is none") {
  for (const auto& [t, s] : {std::pair<std::int64_t, std::int64_t>{9, 3}, {3, 9}, {70, 70}}) {
    const Tensor q = test::random({1, t, 2, 4}, 1, DType::f32),
                 k = test::random({1, s, 2, 4}, 2, DType::f32);
    const AttentionOptions widest{.causal = true,
                                  .window = std::numeric_limits<std::int64_t>::max()};
    const Tensor y = attention(q, k, k, widest);
    CHECK(test::different_bits(y, attention(q, k, k, {.causal = true})) == "");
  }
}

TEST_CASE("attention: gradients over several blocks of queries and keys") {
  // With 290 queries the CPU works on copies of a head's rows, unless the window is short.
  struct Case {
    std::int64_t t;
    AttentionOptions o;
    std::int64_t s = 300;
  };
  for (const auto& [t, o, s] :
       {Case{70, {}}, Case{70, {.causal = true, .window = 150}}, Case{290, {}},
        Case{290, {.causal = true}}, Case{290, {.causal = true, .window = 270}, 600},
        Case{290, {.causal = true, .window = 9}},
        Case{300, {.causal = true, .cu_seqlens = cu({0, 20, 20, 285, 300})}},
        Case{290, {.causal = true, .dropout = 0.4, .key = RandomKey{5, 6, 7}}}}) {
    CAPTURE(message("{} queries, window {}", t, o.window));
    // A random direction instead of single elements, because 300 tokens have too many of them.
    TensorList in = inputs({1, t, s, 4, 2, 3});
    in[2] = test::random({1, s, 2, 5}, 8);
    if (o.dropout == 0)
      CHECK(test::mismatch(op(o)(in), by_definition(in, o), test::tolerance(DType::f64)) == "");
    const Tensor dy = test::random({1, t, 4, 5}, 9);
    const TensorList g = gradients(in, o, dy);
    TensorList narrow;
    for (const Tensor& x : in) narrow.push_back(x.to(DType::f32));
    const TensorList g32 = gradients(narrow, o, dy.to(DType::f32));
    for (int i = 0; i < 3; ++i) {
      const Tensor way = test::random(in[i].shape(), 20 + static_cast<std::uint64_t>(i));
      const auto along = [&](double step) {
        TensorList moved = in;
        moved[i] = add(in[i], mul(way, step));
        return mul(op(o)(moved), dy).sum().item();
      };
      const double difference = (along(1e-5) - along(-1e-5)) / 2e-5;
      CHECK(mul(g[i], way).sum().item() == doctest::Approx(difference).epsilon(1e-6));
      CHECK(test::mismatch(g32[i], g[i], 1e-4) == "");
    }
  }
}

TEST_CASE("attention: copies of a head's rows change no bit") {
  // On one thread a head's 290 queries are one range, with copies on every processor. The last 98
  // alone are too few for copies anywhere, and their blocks begin where they did.
  const test::RestoreThreads restore;
  set_num_threads(1);
  TensorList all = inputs({2, 290, 290, 4, 2, 32}, DType::f32);
  all[2] = test::random({2, 290, 2, 24}, 3, DType::f32);
  const auto last = [](const Tensor& x) { return x.slice(1, 192, 290).clone(); };
  // No gradient comes from the queries before, so that dk and dv are the same too.
  const Tensor dy = test::random({2, 290, 4, 24}, 9, DType::f32);
  dy.slice(1, 0, 192).fill_(0);
  const AttentionOptions o{.causal = true};
  const TensorList some = {last(all[0]), all[1], all[2]};
  CHECK(test::different_bits(op(o)(some), last(op(o)(all))) == "");
  const TensorList got = gradients(some, o, last(dy)), want = gradients(all, o, dy);
  CHECK(test::different_bits(got[0], last(want[0])) == "");
  for (int i : {1, 2}) CHECK(test::different_bits(got[i], want[i]) == "");
}

TEST_CASE("attention: gradients in f32 and bf16 agree with f64") {
  const Sizes z{2, 70, 70, 4, 2, 8};
  for (DType t : {DType::f32, DType::bf16, DType::f16}) {
    const TensorList low = inputs(z, t);
    TensorList high;
    for (const Tensor& x : low) high.push_back(x.to(DType::f64));
    const Tensor dy = test::random({2, 70, 4, 8}, 9, t);
    const AttentionOptions o{.causal = true};
    const TensorList got = gradients(low, o, dy), want = gradients(high, o, dy.to(DType::f64));
    for (int i = 0; i < 3; ++i) {
      CHECK(got[i].dtype() == t);
      CHECK(test::mismatch(got[i], want[i], 2 * test::tolerance(t)) == "");
    }
  }
}

TEST_CASE("attention: memory grows linearly with T") {
  const auto peak = [](std::int64_t t) {
    TensorList in = inputs({1, t, t, 2, 2, 8}, DType::f32);
    const Tensor dy = Tensor::ones(in[0].shape());
    gradients(in, {.causal = true}, dy);
    reset_peak();
    const std::int64_t before = memory_stats().live_bytes;
    gradients(in, {.causal = true}, dy);
    return memory_stats().peak_bytes - before;
  };
  const std::int64_t small = peak(512), large = peak(2048);
  CHECK(small > 0);
  CHECK(large <= 5 * small);
  CHECK(large < 2 * 2048 * 2048);  // half a byte for each weight of the 2 heads
}

TEST_CASE("attention: bits do not depend on the number of threads") {
  const test::RestoreThreads restore;
  const TensorList in = inputs({2, 290, 290, 4, 2, 32}, DType::f32);
  const Tensor dy = test::random({2, 290, 4, 32}, 9, DType::f32);
  const AttentionOptions o{.causal = true};
  set_num_threads(1);
  const Tensor y = op(o)(in);
  const TensorList g = gradients(in, o, dy);
  for (int threads : {2, 4}) {
    set_num_threads(threads);
    CHECK(test::different_bits(op(o)(in), y) == "");
    const TensorList h = gradients(in, o, dy);
    for (int i = 0; i < 3; ++i) CHECK(test::different_bits(g[i], h[i]) == "");
  }
}

}  // namespace weft::attention_test
