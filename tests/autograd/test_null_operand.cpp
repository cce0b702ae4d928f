#include <doctest/doctest.h>

#include "weft/tests/support.h"
#include "weft/weft.h"

namespace weft::null_operand_test {
using test::error_of;

TEST_CASE("null operand: every op names the missing operand") {
  const Tensor none, x = Tensor::ones({2, 3}), ids = Tensor::zeros({2}, DType::i64);
  const Tensor x4 = Tensor::ones({1, 2, 2, 4}), table = Tensor::ones({2, 2});
  const struct {
    std::string error, op, operand;
  } cases[] = {
      {error_of([&] { none + x; }), "add", "a"},
      {error_of([&] { x* none; }), "mul", "b"},
      {error_of([&] { none - 1.0; }), "sub", "a"},
      {error_of([&] { 1.0 - none; }), "sub", "b"},
      {error_of([&] { none / 2.0; }), "div", "a"},
      {error_of([&] { 2.0 / none; }), "div", "b"},
      {error_of([&] { none.pow(2); }), "pow", "a"},
      {error_of([&] { maximum(none, 0); }), "maximum", "a"},
      {error_of([&] { none < x; }), "lt", "a"},
      {error_of([&] { lt(none, 1.0); }), "lt", "a"},
      {error_of([&] { where(none, x, x); }), "where", "condition"},
      {error_of([&] { -none; }), "neg", "x"},
      {error_of([&] { none.exp(); }), "exp", "x"},
      {error_of([&] { gelu(none); }), "gelu", "x"},
      {error_of([&] { elu(none); }), "elu", "x"},
      {error_of([&] { sign(none); }), "sign", "x"},
      {error_of([&] { isnan(none); }), "isnan", "x"},
      {error_of([&] { logical_and(x, none); }), "logical_and", "b"},
      {error_of([&] { any(none); }), "any", "x"},
      {error_of([&] { none.clamp(0, 1); }), "clamp", "x"},
      {error_of([&] { none.sum(); }), "sum", "x"},
      {error_of([&] { none.mean({0}); }), "mean", "x"},
      {error_of([&] { none.max(); }), "max", "x"},
      {error_of([&] { none.min(0); }), "min", "x"},
      {error_of([&] { none.argmax(); }), "argmax", "x"},
      {error_of([&] { sum_to(none, {1}); }), "sum_to", "x"},
      {error_of([&] { var(none); }), "var", "x"},
      {error_of([&] { norm(none); }), "norm", "x"},
      {error_of([&] { logsumexp(none); }), "logsumexp", "x"},
      {error_of([&] { cumsum(none); }), "cumsum", "x"},
      {error_of([&] { none.view({2}); }), "view", "x"},
      {error_of([&] { none.reshape({2}); }), "reshape", "x"},
      {error_of([&] { none.permute({0}); }), "permute", "x"},
      {error_of([&] { none.transpose(0, 1); }), "transpose", "x"},
      {error_of([&] { none.expand({2}); }), "expand", "x"},
      {error_of([&] { none.slice(0, 1); }), "slice", "x"},
      {error_of([&] { none.select(0, 1); }), "select", "x"},
      {error_of([&] { none.squeeze(0); }), "squeeze", "x"},
      {error_of([&] { none.unsqueeze(0); }), "unsqueeze", "x"},
      {error_of([&] { none.flatten(); }), "flatten", "x"},
      {error_of([&] { none.split(1); }), "split", "x"},
      {error_of([&] { none.contiguous(); }), "contiguous", "x"},
      {error_of([&] { none.clone(); }), "clone", "x"},
      {error_of([&] { none.to(DType::f64); }), "cast", "x"},
      {error_of([&] { none.to(kMeta); }), "to_device", "x"},
      {error_of([&] {
         cat({x, none});
       }),
       "cat", "every x"},
      {error_of([&] {
         stack({none, x});
       }),
       "stack", "every x"},
      {error_of([&] { matmul(x, none); }), "matmul", "b"},
      {error_of([&] { linear(none, x); }), "linear", "x"},
      {error_of([&] { linear(x, none); }), "linear", "weight"},
      {error_of([&] { none.softmax(); }), "softmax", "x"},
      {error_of([&] { layer_norm(none); }), "layer_norm", "x"},
      {error_of([&] { rms_norm(none); }), "rms_norm", "x"},
      {error_of([&] { cross_entropy(none, ids); }), "cross_entropy", "logits"},
      {error_of([&] { cross_entropy(x, none); }), "cross_entropy", "targets"},
      {error_of([&] { linear_cross_entropy(none, x, ids); }), "linear_cross_entropy", "x"},
      {error_of([&] { mse_loss(x, none); }), "mse_loss", "target"},
      {error_of([&] { embedding(none, ids); }), "embedding", "weight"},
      {error_of([&] { embedding(x, none); }), "embedding", "ids"},
      {error_of([&] { x.index_select(0, none); }), "index_select", "index"},
      {error_of([&] { x.gather(0, none); }), "gather", "index"},
      {error_of([&] {
         scatter_add(x, 0, Tensor::zeros({2, 3}, DType::i64), none);
       }),
       "scatter_add", "source"},
      {error_of([&] { one_hot(none, 3); }), "one_hot", "ids"},
      {error_of([&] { tril(none); }), "tril", "x"},
      {error_of([&] { sort(none); }), "sort", "x"},
      {error_of([&] { dropout(none, 0.5, RandomKey{}); }), "dropout", "x"},
      {error_of([&] { swiglu(x, none); }), "swiglu", "up"},
      {error_of([&] { swiglu(none); }), "swiglu", "x"},
      {error_of([&] { rope(x4, none, table); }), "rope", "cos"},
      {error_of([&] { attention(x4, none, x4); }), "attention", "k"},
      {error_of([&] { none.fill_(1); }), "fill_", "the tensor"},
      {error_of([&] { none.mul_(2); }), "mul_", "the tensor"},
      {error_of([&] { x.add_(none); }), "add_", "other"},
      {error_of([&] { x.copy_(none); }), "copy_", "source"},
  };
  for (const auto& c : cases)
    CHECK(c.error == c.op + ": " + c.operand + " must be a tensor, got a null handle");
}

}  // namespace weft::null_operand_test
