// attention() with a mask, beside attention by definition and beside the kernels without one.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/view.h"
#include "weft/core/random.h"
#include "weft/tests/attention_support.h"

namespace weft::attention_mask_test {

using attention_test::inputs;
using attention_test::op;
using attention_test::Sizes;

constexpr double kInf = std::numeric_limits<double>::infinity();

// Softmax attention of one query at a time; `bias` (B, H, T, S) is added, -infinity hides.
Tensor by_definition(const TensorList& in, const Tensor& bias) {
  const Tensor &q = in[0], &k = in[1], &v = in[2];
  const std::int64_t H = q.dim(2), shared = H / k.dim(2);
  const Tensor y = Tensor::zeros({q.dim(0), q.dim(1), H, v.dim(3)}, DType::f64);
  for (std::int64_t b = 0; b < q.dim(0); ++b)
    for (std::int64_t h = 0; h < H; ++h)
      for (std::int64_t t = 0; t < q.dim(1); ++t) {
        double sum = 0;
        const Tensor out = y.select(0, b).select(0, t).select(0, h);
        for (std::int64_t s = 0; s < k.dim(1); ++s) {
          const Tensor key = k.select(0, b).select(0, s).select(0, h / shared);
          const Tensor query = q.select(0, b).select(0, t).select(0, h);
          const double score = mul(query, key).sum().item() / std::sqrt(double(q.dim(3))) +
                               bias.select(0, b).select(0, h).select(0, t).select(0, s).item();
          const double e = std::exp(score);
          sum += e;
          out.add_(mul(v.select(0, b).select(0, s).select(0, h / shared), e));
        }
        if (sum > 0) out.mul_(1 / sum);
      }
  return y;
}

TEST_CASE("attention: a mask of numbers is added to the scores") {
  for (const Sizes& z :
       {Sizes{2, 3, 5, 4, 2, 3}, Sizes{1, 1, 1, 1, 1, 1}, Sizes{2, 4, 4, 3, 3, 2}}) {
    const TensorList in = inputs(z);
    const Tensor whole = test::random({z.b, z.h, z.t, z.s}, 7, DType::f64);
    const Tensor hidden = masked_fill(whole, gt(whole, 0.3), -kInf);
    for (const Tensor& mask : {whole, hidden}) {
      const Tensor want = by_definition(in, mask);
      CHECK(test::mismatch(op({.mask = mask})(in), want, 1e-13) == "");
    }
    const Tensor keys = test::random({z.s}, 8, DType::f64);  // broadcasts
    CHECK(test::mismatch(op({.mask = keys})(in),
                         by_definition(in, contiguous(keys.expand({z.b, z.h, z.t, z.s}))),
                         1e-13) == "");
  }
}

TEST_CASE("attention: a mask of truth values hides keys, and a query that sees none gives 0") {
  const Sizes z{2, 3, 4, 4, 2, 3};
  const TensorList in = inputs(z);
  const Tensor seen = Tensor::of({1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0}, {3, 4}, DType::boolean);
  const Tensor bias = where(seen, Tensor::zeros({3, 4}, DType::f64), -kInf);
  const Tensor y = op({.mask = seen})(in);
  CHECK(test::mismatch(y, by_definition(in, contiguous(bias.expand({2, 4, 3, 4}))), 1e-13) == "");
  CHECK(test::mismatch(y.select(1, 1), Tensor::zeros({2, 4, 3}, DType::f64), 0) == "");
  CHECK(test::mismatch(op({.mask = bias})(in), y, 1e-13) == "");
  Tape tape;
  const Tensor q = in[0].detach().set_requires_grad();
  const Tensor dq = tape.gradients(attention(q, in[1], in[2], {.mask = seen}), {q},
                                   test::random({2, 3, 4, 3}, 9, DType::f64))[0];
  CHECK(test::mismatch(dq.select(1, 1), Tensor::zeros({2, 4, 3}, DType::f64), 0) == "");
}

TEST_CASE("attention: causal, window and dropout mean the same with a mask that hides nothing") {
  const Sizes z{2, 5, 7, 4, 2, 3};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const TensorList in = inputs(z, dtype);
    const double close = dtype == DType::f64 ? 1e-13 : is_half(dtype) ? 2e-2 : 1e-5;
    for (const AttentionOptions& o :
         {AttentionOptions{}, AttentionOptions{.causal = true},
          AttentionOptions{.causal = true, .window = 2}, AttentionOptions{.scale = 0.3},
          AttentionOptions{.causal = true, .dropout = 0.4, .key = RandomKey{5, 6, 7}}}) {
      AttentionOptions masked = o;
      masked.mask = Tensor::full({1, 1, 1, 1}, 1, DType::boolean);
      const Tensor y = op(masked)(in);
      CHECK(y.dtype() == dtype);
      CHECK(test::mismatch(y.to(DType::f64), op(o)(in).to(DType::f64), close) == "");
    }
  }
}

TEST_CASE("attention: gradients with a mask, also of the mask, once and twice") {
  TensorList in = inputs({1, 2, 3, 2, 1, 2});
  in.push_back(test::random({2, 1, 3}, 4, DType::f64));
  const auto f = [](const TensorList& x) {
    return attention(x[0], x[1], x[2], {.causal = true, .mask = x[3]});
  };
  CHECK(gradcheck(f, in, {.second_order = true}) == "");
  const auto packed = [](const TensorList& x) {
    return attention_packed(x[0], 2, 1, {.mask = x[1]});
  };
  CHECK(gradcheck(packed, {test::random({1, 3, 4, 2}, 5, DType::f64), in[3].detach()}) == "");
}

TEST_CASE("attention: refused masks, and empty operands") {
  const TensorList in = inputs({2, 3, 4, 4, 2, 3}, DType::f32);
  const auto text = [&](const AttentionOptions& o) { return test::error_of([&] { op(o)(in); }); };
  CHECK(text({.mask = Tensor::zeros({3, 4}, DType::i32)}) ==
        "attention: mask must be bool, or numbers of the dtype of q, f32, got i32");
  CHECK(text({.mask = Tensor::zeros({3, 5})}) ==
        "attention: mask must have axes that broadcast to (batch, heads, queries, keys) "
        "[2, 4, 3, 4], got [3, 5]");
  CHECK(text({.mask = Tensor::zeros({})}) ==
        "attention: mask must have axes that broadcast to (batch, heads, queries, keys) "
        "[2, 4, 3, 4], got []");
  CHECK(text({.mask = Tensor::empty({3, 4}, DType::f32, kMeta)}) ==
        "attention: mask must be on the device of q, cpu, got meta");
  const Tensor row = Tensor::zeros({1, 3, 1, 2}), mask = Tensor::zeros({3, 3});
  CHECK(test::error_of([&] {
          attention(row, row, row, {.cu_seqlens = attention_test::cu({0, 3}), .mask = mask});
        }) == "attention: a mask cannot go with cu_seqlens");
  const Tensor none = Tensor::zeros({1, 0, 1, 2});
  CHECK(attention(none, row, row, {.mask = Tensor::zeros({3})}).shape() == Shape{1, 0, 1, 2});
  CHECK(test::mismatch(attention(row, none, none, {.mask = Tensor::zeros({3, 1})}), row, 0) == "");
}

TEST_CASE("attention: without a key each call drops other weights, and a seed repeats them") {
  const TensorList in = inputs({1, 8, 8, 2, 2, 4});
  const auto f = op({.dropout = 0.5});
  manual_seed(4);
  const Tensor first = f(in), second = f(in);
  manual_seed(4);
  CHECK(test::mismatch(first, f(in), 0) == "");
  CHECK(test::mismatch(first, second, 0) != "");
  manual_seed(0);
}

}  // namespace weft::attention_mask_test
