#pragma once
// Helpers shared by the tests of attention.
#include <initializer_list>

#include "weft/autograd/attention.h"
#include "weft/tests/support.h"

namespace weft::attention_test {

struct Sizes {
  std::int64_t b, t, s, h, kv, d;
};

inline TensorList inputs(const Sizes& z, DType dtype = DType::f64) {
  return {test::random({z.b, z.t, z.h, z.d}, 1, dtype),
          test::random({z.b, z.s, z.kv, z.d}, 2, dtype),
          test::random({z.b, z.s, z.kv, z.d}, 3, dtype)};
}

inline auto op(const AttentionOptions& o = {}) {
  return [o](const TensorList& in) { return attention(in[0], in[1], in[2], o); };
}

inline Tensor cu(std::initializer_list<double> values) {
  return Tensor::of(values, {static_cast<std::int64_t>(values.size())}, DType::i32);
}

inline TensorList gradients(const TensorList& in, const AttentionOptions& o, const Tensor& dy) {
  Tape tape;
  TensorList leaves;
  for (const Tensor& t : in) leaves.push_back(t.detach().set_requires_grad());
  return tape.gradients(attention(leaves[0], leaves[1], leaves[2], o), leaves, dy);
}

}  // namespace weft::attention_test
