#include <doctest/doctest.h>

#include "weft/autograd/attention.h"
#include "weft/autograd/elementwise.h"
#include "weft/tests/cuda/gpu.h"

namespace weft::attention_test {
namespace {

using test::Agreement;
using test::kGpu;
using test::Op;
using test::random;

struct Sizes {
  std::int64_t b, t, s, h, kv, d;
};

TensorList inputs(const Sizes& z, DType dtype = DType::f64) {
  return {random({z.b, z.t, z.h, z.d}, 1, dtype), random({z.b, z.s, z.kv, z.d}, 2, dtype),
          random({z.b, z.s, z.kv, z.d}, 3, dtype)};
}

Op op(const AttentionOptions& o = {}) {
  return [o](const TensorList& in) { return TensorList{attention(in[0], in[1], in[2], o)}; };
}

// The sequences come as a fourth input, so they are on the GPU if q is.
Op packed(const AttentionOptions& o = {}) {
  return [o](const TensorList& in) {
    AttentionOptions with = o;
    with.cu_seqlens = in[3];
    return TensorList{attention(in[0], in[1], in[2], with)};
  };
}

Tensor cu(std::initializer_list<double> values) {
  return Tensor::of(values, {static_cast<std::int64_t>(values.size())}, DType::i32);
}

std::string text(const Sizes& z) {
  return message("b {} t {} s {} h {} kv {} d {}", z.b, z.t, z.s, z.h, z.kv, z.d);
}

// dq is the sum of scale * p (dy v - delta) k over the keys. The weights p sum to 1 and dy v is
// about sqrt(d) = 1 / scale, so its terms have a size of 2 / pi for normal numbers, and they
// cancel; the same holds for dk. Dropout multiplies dy v and delta by 1 / (1 - dropout).
std::string difference(const Op& f, const TensorList& in, Agreement how = {}, double dropout = 0) {
  how.terms = 0.64 / (1 - dropout);
  return test::disagreement(f, in, how);
}

const AttentionOptions kMasks[] = {{}, {.causal = true}, {.causal = true, .window = 5}};

}  // namespace

TEST_CASE("attention: every order of threads") {
  // Fewer dimensions than lanes, more than two chunks, and the widths that bf16 has kernels for.
  for (const Sizes& z : {Sizes{1, 5, 5, 2, 1, 3}, Sizes{1, 3, 9, 1, 1, 130},
                         Sizes{1, 17, 17, 2, 1, 64}, Sizes{1, 17, 17, 1, 1, 128}}) {
    CAPTURE(text(z));
    CHECK(difference(op({.causal = true}), inputs(z)) == "");
  }
}

TEST_CASE("attention: two alternating stages of tiles in every order of threads and copies") {
  // At least three tiles of keys for a block of queries, and of queries for a block of keys.
  for (const Sizes& z : {Sizes{1, 9, 200, 3, 1, 64}, Sizes{1, 9, 130, 3, 1, 128}}) {
    CAPTURE(text(z));
    CHECK(difference(op(), inputs(z), {.dtypes = {DType::bf16, DType::f16}}) == "");
  }
  const AttentionOptions drops{.dropout = 0.3, .key = RandomKey{11, 3, 0}};
  CHECK(difference(op(drops), inputs({1, 9, 100, 3, 1, 64}),
                   {.dtypes = {DType::bf16, DType::f16}}) == "");
}

TEST_CASE("attention: masks, lengths and grouped heads in every kernel") {
  const Agreement once{.all_orders = false};
  for (const Sizes& z :
       {Sizes{2, 1, 1, 1, 1, 64}, Sizes{1, 65, 65, 2, 2, 64}, Sizes{1, 130, 130, 2, 1, 64},
        Sizes{1, 17, 65, 4, 1, 64}, Sizes{1, 65, 17, 1, 1, 64}, Sizes{1, 65, 65, 1, 1, 128},
        Sizes{2, 17, 70, 2, 1, 128}, Sizes{1, 33, 33, 4, 2, 20}, Sizes{1, 40, 70, 4, 1, 7},
        Sizes{1, 70, 40, 2, 2, 1}, Sizes{1, 33, 40, 2, 1, 256},
        // Whole tiles.
        Sizes{1, 128, 128, 2, 1, 64}, Sizes{1, 64, 64, 2, 1, 128}, Sizes{1, 32, 64, 2, 1, 9}})
    for (const AttentionOptions& o : kMasks) {
      CAPTURE(text(z));
      CAPTURE(o.window);
      CHECK(difference(op(o), inputs(z), once) == "");
    }
}

TEST_CASE("attention: values narrower and wider than queries and keys") {
  for (const auto& [d, width] : {std::pair{64, 9}, {6, 70}, {64, 128}, {3, 2}})
    for (const AttentionOptions& o : kMasks) {
      CAPTURE(d);
      TensorList in = inputs({1, 33, 40, 4, 2, d});
      in[2] = random({1, 40, 2, width}, 3);
      CHECK(difference(op(o), in, {.all_orders = d == 3}) == "");
    }
}

TEST_CASE("attention: a given scale may be negative") {
  for (const std::int64_t d : {64, 9})
    for (const double scale : {0.2, -0.1})
      CHECK(difference(op({.causal = true, .scale = scale}), inputs({1, 33, 33, 1, 1, d}),
                       {.all_orders = false}) == "");
}

TEST_CASE("attention: zero queries, keys or batches") {
  for (const std::int64_t d : {64, 3})
    for (const Sizes& z :
         {Sizes{2, 0, 4, 2, 2, d}, Sizes{2, 4, 0, 2, 1, d}, Sizes{0, 4, 4, 2, 2, d}}) {
      CAPTURE(text(z));
      CHECK(difference(op(), inputs(z), {.all_orders = false}) == "");
    }
}

TEST_CASE("attention: packed sequences with empty ones") {
  for (const std::int64_t d : {64, 128, 5})
    for (const Tensor& split : {cu({0, 70}), cu({0, 5, 5, 66, 70}), cu({0, 0, 33, 34, 70, 70})})
      for (const AttentionOptions& o : kMasks) {
        CAPTURE(d);
        CAPTURE(o.window);
        TensorList in = inputs({1, 70, 70, 2, 1, d});
        in.push_back(split);
        CHECK(difference(packed(o), in, {.all_orders = false}) == "");
      }
  TensorList none = inputs({1, 0, 0, 2, 1, 4});
  none.push_back(cu({0}));
  CHECK(difference(packed(), none, {.all_orders = false}) == "");
  // Sequences that are still on the host.
  CHECK(difference(op({.cu_seqlens = cu({0, 3, 9})}), inputs({1, 9, 9, 1, 1, 64}),
                   {.all_orders = false}) == "");
}

TEST_CASE("attention: masks of truth values and of numbers") {
  const Sizes z{2, 5, 7, 4, 2, 6};
  TensorList in = inputs(z);
  in.push_back(test::random({z.h, z.t, z.s}, 4));
  const auto added = [](const TensorList& x) {
    return TensorList{attention(x[0], x[1], x[2], {.causal = true, .mask = x[3]})};
  };
  CHECK(difference(added, in) == "");
  const auto hidden = [](const TensorList& x) {
    return TensorList{attention(x[0], x[1], x[2], {.mask = gt(x[3], 0)})};
  };
  CHECK(difference(hidden, in) == "");
}

TEST_CASE("attention: dropout draws the CPU's numbers") {
  for (const Sizes& z :
       {Sizes{2, 33, 35, 4, 2, 64}, Sizes{1, 18, 66, 1, 1, 128}, Sizes{1, 33, 33, 2, 1, 6},
        // Rows of whole Philox blocks, in which four weights share one.
        Sizes{1, 70, 72, 2, 1, 64}, Sizes{1, 18, 68, 1, 1, 128}})
    for (const std::uint64_t first : {0, 7, 8}) {
      CAPTURE(text(z));
      AttentionOptions o{.causal = true, .dropout = 0.3, .key = RandomKey{11, 3, first}};
      CHECK(difference(op(o), inputs(z), {.all_orders = false}, o.dropout) == "");
      o.key_heads = 9;
      CHECK(difference(op(o), inputs(z), {.all_orders = false}, o.dropout) == "");
      o.window = 5;  // tiles begin anywhere
      CHECK(difference(op(o), inputs(z), {.all_orders = false}, o.dropout) == "");
    }
  TensorList in = inputs({1, 70, 70, 2, 1, 64});
  in.push_back(cu({0, 33, 70}));
  CHECK(difference(packed({.dropout = 0.5, .key = RandomKey{5, 1, 0}}), in,
                   {.all_orders = false}) == "");
  // Tiles that hold tokens of two of the rows that lie side by side.
  for (const std::int64_t d : {64, 6})
    for (const int row : {35, 36}) {
      TensorList side_by_side = inputs({1, 2 * row, 2 * row, 2, 1, d});
      side_by_side.push_back(cu({0, 20, double(row), 2. * row}));
      const AttentionOptions o{
          .causal = true, .dropout = 0.5, .key = RandomKey{5, 1, 8}, .key_rows = 2};
      CHECK(difference(packed(o), side_by_side, {.all_orders = false}, o.dropout) == "");
    }
}

TEST_CASE(
    "attention: slices of one projection, strided memory, unaligned heads, one input thrice") {
  for (const std::int64_t d : {64, 6}) {
    const Op sliced = [d](const TensorList& in) {
      const auto part = [&](std::int64_t first, std::int64_t heads) {
        const Tensor t = in[0].slice(2, first * d, (first + heads) * d);
        return t.reshape({in[0].dim(0), in[0].dim(1), heads, d});
      };
      return TensorList{attention(part(0, 2), part(2, 1), part(3, 1), {.causal = true})};
    };
    CHECK(difference(sliced, {random({2, 35, 4 * d})}, {.all_orders = false}) == "");
    const TensorList in = inputs({2, 5, 5, 2, 1, d});
    CHECK(difference(op(), {test::strided(in[0]), test::strided(in[1]), in[2]},
                     {.all_orders = false}) == "");
    const Op thrice = [](const TensorList& one) {
      return TensorList{attention(one[0], one[0], one[0], {.causal = true})};
    };
    CHECK(difference(thrice, {random({1, 9, 2, d})}, {.all_orders = false}) == "");
  }
  // One element past a multiple of 16 bytes.
  const Op odd = [](const TensorList& in) {
    const Tensor t = in[0].slice(2, 1, 65).reshape({1, 9, 1, 64});
    return TensorList{attention(t, t, t, {.causal = true})};
  };
  CHECK(difference(odd, {random({1, 9, 72})}, {.all_orders = false}) == "");
}

TEST_CASE("attention_packed: one gradient from every kernel") {
  for (const std::int64_t d : {64, 128, 6})
    for (const AttentionOptions& o : kMasks) {
      const Op whole = [&](const TensorList& in) {
        return TensorList{attention_packed(in[0], 2, 1, o)};
      };
      CHECK(difference(whole, {random({2, 35, 4, d})}, {.all_orders = false}) == "");
    }
  // Heads that start one element after a multiple of 16 bytes.
  const Op odd = [](const TensorList& in) {
    return TensorList{attention_packed(in[0].narrow(3, 1, 64), 2, 1, {.causal = true})};
  };
  CHECK(difference(odd, {random({1, 9, 4, 72})}, {.all_orders = false}) == "");
}

TEST_CASE("attention: one token per row with any memory layout") {
  const Op heads_first = [](const TensorList& in) {
    return TensorList{
        attention(in[0].transpose(1, 2), in[1].transpose(1, 2), in[2].transpose(1, 2))};
  };
  const Op tokens_first = [](const TensorList& in) {
    return TensorList{
        attention(in[0].transpose(0, 1), in[1].transpose(0, 1), in[2].transpose(0, 1))};
  };
  const Op packed_heads_first = [](const TensorList& in) {
    return TensorList{attention_packed(in[0].transpose(1, 2), 2, 1)};
  };
  // (heads, batch, tokens, d): one head is contiguous, with one or several tokens per row.
  const Op packed_by_head = [](const TensorList& in) {
    return TensorList{attention_packed(in[0].permute({1, 2, 0, 3}), 1, 1)};
  };
  for (const std::int64_t d : {64, 128, 6}) {
    CAPTURE(d);
    CHECK(difference(packed_by_head, {random({3, 4, 1, d})}, {.all_orders = false}) == "");
    for (const std::int64_t keys : {1, 5}) {
      CHECK(difference(
                heads_first,
                {random({3, 2, 1, d}, 1), random({3, 1, keys, d}, 2), random({3, 1, keys, d}, 3)},
                {.all_orders = false}) == "");
      CHECK(difference(
                tokens_first,
                {random({1, 3, 2, d}, 1), random({keys, 3, 1, d}, 2), random({keys, 3, 1, d}, 3)},
                {.all_orders = false}) == "");
    }
    CHECK(difference(packed_heads_first, {random({3, 4, 1, d})}, {.all_orders = false}) == "");
  }
}

TEST_CASE("attention: scores far from 0 neither overflow nor underflow") {
  for (const std::int64_t d : {64, 4})
    for (const double size : {-100.0, 100.0}) {
      TensorList in = inputs({1, 5, 150, 1, 1, d});
      in[0] = Tensor::full(in[0].shape(), size, DType::f64);
      // A score of several hundred has an error of 3e-5 in f32, and so does its exponential.
      CHECK(difference(op(), in, {.tolerance = 8, .gradients = false, .all_orders = false}) == "");
    }
}

TEST_CASE("attention: the same bits in every run and order of threads") {
  for (const std::int64_t d : {64, 10}) {
    TensorList in;
    for (const Tensor& t : inputs({1, 40, 40, 2, 1, d}, DType::bf16))
      in.push_back(t.to(kGpu).set_requires_grad());
    const Tensor dy = random({1, 40, 2, d}, 9, DType::bf16).to(kGpu);
    TensorList first;
    test::for_each_order([&] {
      Tape tape;
      const Tensor y = attention(in[0], in[1], in[2], {.causal = true});
      TensorList all = tape.gradients(y, in, dy);
      all.push_back(y);
      if (first.size() == 0) first = all;
      for (int i = 0; i < all.size(); ++i)
        CHECK(test::different_bits(all[i].to(kCpu), first[i].to(kCpu)) == "");
    });
  }
}

TEST_CASE("attention: a call without packed sequences does not wait for the device") {
  TensorList in;
  for (const Tensor& t : inputs({1, 9, 9, 1, 1, 64}, DType::bf16))
    in.push_back(t.to(kGpu).set_requires_grad());
  const Tensor dy = random({1, 9, 1, 64}, 9, DType::bf16).to(kGpu);
  const std::int64_t before = cuda::host_syncs();
  Tape tape;
  const TensorList g = tape.gradients(attention(in[0], in[1], in[2], {.causal = true}), in, dy);
  CHECK(cuda::host_syncs() == before);
  cuda::synchronize();
}

TEST_CASE("attention: a wrong call gives a one-line error") {
  const Tensor wide = Tensor::zeros({1, 2, 1, 257}, DType::bf16, kGpu);
  CHECK(test::error_of([&] { attention(wide, wide, wide); }) ==
        "attention: head_dim must be at most 256 on a GPU, got 257");
  const Tensor q = Tensor::zeros({1, 2, 1, 64}), split = cu({0, 2}).to(kGpu);
  CHECK(test::error_of([&] { attention(q, q, q, {.cu_seqlens = split}); }) ==
        "attention: cu_seqlens must be on the CPU or with q on cpu, got cuda:0");
}

}  // namespace weft::attention_test
