// What attention() refuses, and what it gives for operands without values.
#include <doctest/doctest.h>

#include "weft/tests/attention_support.h"

namespace weft::attention_errors_test {

using attention_test::cu;

TEST_CASE("attention: meta operands give shape and dtype") {
  const Tensor y = attention(Tensor::empty({2, 3, 4, 8}, DType::bf16, kMeta),
                             Tensor::empty({2, 5, 2, 8}, DType::bf16, kMeta),
                             Tensor::empty({2, 5, 2, 8}, DType::bf16, kMeta), {.causal = true});
  CHECK(y.is_meta());
  CHECK(y.shape() == Shape{2, 3, 4, 8});
  CHECK(y.dtype() == DType::bf16);
}

TEST_CASE("attention: errors name the rule and the operands") {
  const auto text = [](const Shape& q, const Shape& k, const AttentionOptions& o = {}) {
    return test::error_of(
        [&] { attention(Tensor::zeros(q), Tensor::zeros(k), Tensor::zeros(k), o); });
  };
  const Shape x{1, 4, 2, 3};
  CHECK(text({4, 2, 3}, x) ==
        "attention: q, k and v must have 4 axes (batch, tokens, heads, head_dim), got [4, 2, 3], "
        "[1, 4, 2, 3] and [1, 4, 2, 3]");
  CHECK(text(x, {2, 4, 2, 3}) ==
        "attention: batch and head_dim of q [1, 4, 2, 3] and k [2, 4, 2, 3] must be equal");
  CHECK(text({1, 4, 2, 0}, {1, 4, 2, 0}) ==
        "attention: head_dim must be at least 1, got q [1, 4, 2, 0] and v [1, 4, 2, 0]");
  CHECK(text({1, 4, 6, 3}, {1, 4, 4, 3}) == "attention: heads 6 must be a multiple of kv_heads 4");
  CHECK(text(x, x, {.causal = true, .window = -1}) ==
        "attention: window must be at least 0, got -1");
  CHECK(text(x, x, {.window = 2}) == "attention: window 2 needs causal");
  CHECK(text(x, x, {.key_heads = -1}) == "attention: key_heads must be at least 0, got -1");
  CHECK(text(x, x, {.key_rows = 0}) == "attention: key_rows must be at least 1, got 0");
  CHECK(text(x, x, {.key_rows = 2}) ==
        "attention: 2 key_rows need a packed row of a multiple of as many tokens, got [1, 4, 2, "
        "3]");
  CHECK(text(x, x, {.cu_seqlens = cu({0, 4}), .key_rows = 3}) ==
        "attention: 3 key_rows need a packed row of a multiple of as many tokens, got [1, 4, 2, "
        "3]");
  CHECK(text(x, x, {.dropout = 1}) == "attention: dropout must be in [0, 1), got 1");
  const Tensor a = Tensor::zeros(x);
  CHECK(test::error_of([&] {
          attention(a, a, Tensor::zeros({1, 5, 2, 3}));
        }) ==
        "attention: batch, tokens and heads of k [1, 4, 2, 3] and v [1, 5, 2, 3] must be equal");
  CHECK(test::error_of([&] { attention(a, a, Tensor::zeros(x, DType::f64)); }) ==
        "attention: q, k and v must have one dtype, got f32, f32 and f64");
  CHECK(test::error_of([&] { attention(a, a, Tensor::empty(x, DType::f32, kMeta)); }) ==
        "attention: q, k and v must be on one device, got cpu, cpu and meta");
  const Tensor i = Tensor::zeros(x, DType::i32);
  CHECK(test::error_of([&] { attention(i, i, i); }) ==
        "attention: dtype must be one of f32, f64, bf16, f16, got i32");
  CHECK(text(x, x, {.cu_seqlens = Tensor::zeros({3}, DType::i64)}) ==
        "attention: cu_seqlens must be i32 with shape [n + 1], got i64 [3]");
  CHECK(text({2, 4, 2, 3}, {2, 4, 2, 3}, {.cu_seqlens = cu({0, 4})}) ==
        "attention: with cu_seqlens q and k must be one row of the same tokens, got [2, 4, 2, 3] "
        "and [2, 4, 2, 3]");
  CHECK(text(x, x, {.cu_seqlens = cu({1, 4})}) == "attention: cu_seqlens must start at 0, got 1");
  CHECK(text(x, x, {.cu_seqlens = cu({0, 3, 2, 4})}) ==
        "attention: cu_seqlens must not decrease, got 2 after 3");
  CHECK(text(x, x, {.cu_seqlens = cu({0, 3})}) ==
        "attention: cu_seqlens must end at the number of tokens 4, got 3");
}

TEST_CASE("attention: a second derivative is refused") {
  Tensor q = test::random({1, 3, 1, 2}, 1);
  q.set_requires_grad();
  Tape outer;
  Tape tape;
  const Tensor y = attention(q, q, q);
  const Tensor dy = Tensor::ones(y.shape(), DType::f64);
  CHECK(test::error_of([&] { tape.gradients(y, {q}, dy); }) ==
        "attention: its backward is a fused kernel and can be differentiated only once; build it "
        "from primitive ops, or open a NoGradGuard around the backward pass");
}

}  // namespace weft::attention_errors_test
