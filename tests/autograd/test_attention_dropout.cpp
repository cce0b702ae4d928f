#include <doctest/doctest.h>

#include "weft/autograd/indexing.h"
#include "weft/tests/attention_support.h"

namespace weft::attention_test {

TEST_CASE("attention: dropout zeroes the weights selected by its key in forward and backward") {
  // Equal keys make all weights 1 / S, and values of 1 make y the fraction of kept weights.
  const std::int64_t n = 400;
  const AttentionOptions o{.dropout = 0.25, .key = RandomKey{3, 4, 0}};
  const Tensor q = Tensor::zeros({1, n, 2, 1}, DType::f64);
  const Tensor k = Tensor::zeros({1, n, 1, 1}, DType::f64),
               v = Tensor::ones({1, n, 1, 1}, DType::f64);
  const Tensor y = attention(q, k, v, o);
  CHECK(y.mean().item() == doctest::Approx(1).epsilon(0.01));
  double row = 0;  // head 1, query 7
  for (std::uint64_t s = 0; s < 400; ++s)
    row += uniform_from_bits(random_bits(*o.key, (400 + 7) * 400 + s)) < 0.25 ? 0 : 1 / 0.75 / 400;
  CHECK(y.select(1, 7).select(1, 1).item() == doctest::Approx(row));

  CHECK(gradcheck(op({.causal = true, .dropout = 0.4, .key = RandomKey{5, 6, 7}}),
                  inputs({2, 5, 5, 4, 2, 3})) == "");
  CHECK(gradcheck(op({.dropout = 0.4, .key = RandomKey{5, 6, 7}, .cu_seqlens = cu({0, 2, 5})}),
                  inputs({1, 5, 5, 2, 1, 3})) == "");
}

TEST_CASE("attention: a shard of the heads drops the same weights as the whole") {
  const TensorList in = inputs({2, 6, 7, 4, 2, 3});
  const AttentionOptions whole{.causal = true, .dropout = 0.4, .key = RandomKey{5, 6, 11}};
  const Tensor want = attention(in[0], in[1], in[2], whole);
  for (const std::int64_t first : {0, 2}) {
    AttentionOptions part = whole;
    part.key_heads = 4;
    part.key->first += static_cast<std::uint64_t>(first * 6 * 7);
    const auto heads = [&](int i, std::int64_t from, std::int64_t n) {
      return narrow(in[i], 2, from, n);
    };
    const Tensor got =
        attention(heads(0, first, 2), heads(1, first / 2, 1), heads(2, first / 2, 1), part);
    CHECK(test::different_bits(got, narrow(want, 2, first, 2).contiguous()) == "");
    CHECK(gradcheck(op(part),
                    {heads(0, first, 2), heads(1, first / 2, 1), heads(2, first / 2, 1)}) == "");
  }
}

TEST_CASE("attention: rows side by side drop the weights of separate rows") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const std::int64_t rows = 3, length = 70, heads = 4;
    AttentionOptions o{.causal = true, .dropout = 0.4, .key = RandomKey{5, 6, 11}, .key_heads = 6};
    const TensorList in = inputs({rows, length, length, heads, 2, 3}, dtype);
    const Tensor dy = test::random({rows, length, heads, 3}, 9, dtype);
    const auto run = [&](const TensorList& operands, const AttentionOptions& how,
                         const Tensor& cotangent) {
      TensorList out = gradients(operands, how, cotangent);
      out.push_back(attention(operands[0], operands[1], operands[2], how));
      return out;
    };
    AttentionOptions packed = o;
    packed.key_rows = rows;
    packed.cu_seqlens = cu({0, 20, 70, 140, 141, 210});
    TensorList flat;
    for (const Tensor& t : in) flat.push_back(t.view({1, rows * length, t.dim(2), t.dim(3)}));
    const TensorList got = run(flat, packed, dy.view({1, rows * length, heads, 3}));
    const Tensor inside[] = {cu({0, 20, 70}), cu({0, 70}), cu({0, 1, 70})};
    for (std::int64_t row = 0; row < rows; ++row) {
      CAPTURE(row);
      TensorList own;
      for (const Tensor& t : in) own.push_back(t.narrow(0, row, 1));
      o.key->first = 11 + static_cast<std::uint64_t>(row * 6 * length * length);
      o.cu_seqlens = inside[row];
      const TensorList want = run(own, o, dy.narrow(0, row, 1));
      for (int i = 0; i < want.size(); ++i)
        CHECK(test::different_bits(got[i].narrow(1, row * length, length).contiguous(), want[i]) ==
              "");
    }
  }
}

}  // namespace weft::attention_test
