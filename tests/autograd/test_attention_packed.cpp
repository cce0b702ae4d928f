#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "weft/tests/attention_support.h"

namespace weft::attention_test {

namespace {

// The same values with the axes in this memory order. An axis of length 1 gets the stride `any`.
Tensor in_memory(const Tensor& x, const std::array<int, 4>& order, std::int64_t any) {
  Shape strides = x.shape();
  std::int64_t step = 1;
  for (int i = 3; i >= 0; --i) {
    const int axis = order[static_cast<std::size_t>(i)];
    strides[axis] = x.dim(axis) == 1 ? any : step;
    step *= x.dim(axis);
  }
  const Tensor t = empty_like(x).alias(x.shape(), strides, 0);
  t.copy_(x);
  return t;
}

}  // namespace

TEST_CASE("attention: queries, keys and values may be views of one projection") {
  const Tensor qkv = test::random({2, 9, 8 * 4}, 1, DType::f32);
  const auto part = [&](std::int64_t at, std::int64_t heads) {
    const Tensor t = qkv.slice(2, at * 4, (at + heads) * 4);
    return t.alias({2, 9, heads, 4}, {t.strides()[0], t.strides()[1], 4, 1}, 0);
  };
  const Tensor q = part(0, 4), k = part(4, 2), v = part(6, 2);
  CHECK(test::different_bits(attention(q, k, v), attention(q.clone(), k.clone(), v.clone())) == "");
  // A cache longer than its contents.
  const Tensor cache = test::random({2, 20, 2, 4}, 5, DType::f32);
  CHECK(test::different_bits(attention(q, cache.slice(1, 0, 9), v),
                             attention(q, cache.slice(1, 0, 9).clone(), v)) == "");
}

TEST_CASE("attention_packed: gives the bits of attention on its parts and one gradient") {
  struct Case {
    std::int64_t b, t, heads, kv, d;
  };
  for (const Case& c : {Case{2, 9, 4, 2, 4}, Case{1, 70, 2, 2, 6}, Case{1, 1, 1, 1, 1},
                        Case{2, 0, 3, 1, 4}, Case{0, 3, 3, 1, 4}})
    for (const DType t : {DType::f32, DType::f64, DType::bf16, DType::f16})
      for (const AttentionOptions& o :
           {AttentionOptions{}, AttentionOptions{.causal = true, .window = 5},
            AttentionOptions{.causal = true, .dropout = 0.3, .key = RandomKey{5, 1, 0}}}) {
        const Tensor x = test::random({c.b, c.t, c.heads + 2 * c.kv, c.d}, 1, t);
        const Tensor dy = test::random({c.b, c.t, c.heads, c.d}, 2, t);
        const auto both = [&](auto f) {
          Tape tape;
          const Tensor leaf = x.clone().set_requires_grad();
          const Tensor y = f(leaf);
          return TensorList{y, tape.gradients(y, {leaf}, dy)[0]};
        };
        const TensorList got =
            both([&](const Tensor& p) { return attention_packed(p, c.heads, c.kv, o); });
        const TensorList want = both([&](const Tensor& p) {
          return attention(p.narrow(2, 0, c.heads).contiguous(),
                           p.narrow(2, c.heads, c.kv).contiguous(),
                           p.narrow(2, c.heads + c.kv, c.kv).contiguous(), o);
        });
        for (int i = 0; i < 2; ++i) CHECK(test::different_bits(got[i], want[i]) == "");
      }
  const AttentionOptions packed_row{.causal = true, .cu_seqlens = cu({0, 4, 4, 9})};
  for (const AttentionOptions& o : {AttentionOptions{.causal = true}, packed_row})
    CHECK(gradcheck([&](const TensorList& in) { return attention_packed(in[0], 2, 1, o); },
                    {test::random({1, 9, 4, 3}, 1)}) == "");
  CHECK(gradcheck([](const TensorList& in) { return attention_packed(in[0], 2, 1); },
                  {test::strided(test::random({2, 5, 4, 3}, 1))}) == "");
}

TEST_CASE("attention: axes of length 1 may have any stride in any memory order") {
  // One token per row is a decode step; it usually arises from (B, H, 1, D) viewed as (B, 1, H, D).
  for (const Sizes& z : {Sizes{3, 1, 1, 2, 2, 5}, Sizes{2, 1, 4, 4, 2, 3}, Sizes{2, 3, 1, 2, 1, 4},
                         Sizes{2, 1, 1, 1, 1, 4}, Sizes{2, 1, 1, 3, 1, 1}, Sizes{1, 1, 1, 2, 1, 3},
                         Sizes{2, 3, 3, 1, 1, 2}})
    for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      const TensorList in = inputs(z, t);
      const Tensor dy = test::random({z.b, z.t, z.h, z.d}, 4, t);
      const Tensor want = attention(in[0], in[1], in[2]);
      const TensorList grads = gradients(in, {}, dy);
      std::array<int, 4> order = {0, 1, 2, 3};
      do {
        for (const std::int64_t any : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1} << 40}) {
          TensorList moved;
          for (const Tensor& x : in) moved.push_back(in_memory(x, order, any));
          CHECK(test::different_bits(attention(moved[0], moved[1], moved[2]), want) == "");
          const TensorList g = gradients(moved, {}, in_memory(dy, order, any));
          for (int i = 0; i < 3; ++i) CHECK(test::different_bits(g[i], grads[i]) == "");
        }
      } while (std::next_permutation(order.begin(), order.end()));
    }
}

TEST_CASE("attention_packed: axes of length 1 may have any stride in any memory order") {
  for (const DType t : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const std::int64_t heads : {1, 4})
      for (const std::int64_t tokens : {1, 3})
        for (const std::int64_t batch : {1, 2}) {
          const std::int64_t kv = heads == 1 ? 1 : 2;
          const Tensor x = test::random({batch, tokens, heads + 2 * kv, 3}, 1, t);
          const Tensor dy = test::random({batch, tokens, heads, 3}, 2, t);
          const auto both = [&](const Tensor& packed, const Tensor& of_y) {
            Tape tape;
            const Tensor leaf = packed.detach().set_requires_grad();
            const Tensor y = attention_packed(leaf, heads, kv);
            return TensorList{y, tape.gradients(y, {leaf}, of_y)[0]};
          };
          const TensorList want = both(x, dy);
          std::array<int, 4> order = {0, 1, 2, 3};
          do {
            for (const std::int64_t any : {0, 1, 7, 100}) {
              const TensorList got = both(in_memory(x, order, any), in_memory(dy, order, any));
              for (int i = 0; i < 2; ++i) CHECK(test::different_bits(got[i], want[i]) == "");
            }
          } while (std::next_permutation(order.begin(), order.end()));
        }
}

TEST_CASE("attention_packed: errors and meta device") {
  const auto text = [](const Shape& s, std::int64_t heads, std::int64_t kv) {
    return test::error_of([&] { attention_packed(Tensor::zeros(s), heads, kv); });
  };
  CHECK(text({2, 3, 24}, 4, 2) ==
        "attention_packed: packed must have shape (batch, tokens, 4 query + 2 * 2 key heads, "
        "head_dim), got [2, 3, 24]");
  CHECK(text({2, 3, 9, 4}, 4, 2) ==
        "attention_packed: packed must have shape (batch, tokens, 4 query + 2 * 2 key heads, "
        "head_dim), got [2, 3, 9, 4]");
  CHECK(text({2, 3, 7, 4}, 3, 2) == "attention: heads 3 must be a multiple of kv_heads 2");
  const Tensor y = attention_packed(Tensor::empty({2, 3, 8, 4}, DType::bf16, kMeta), 4, 2);
  CHECK(y.is_meta());
  CHECK(y.shape() == Shape{2, 3, 4, 4});
}

}  // namespace weft::attention_test
