#pragma once
// Parameters of a small model, their gradients, and comparisons of their values.
#include <cstddef>
#include <cstdint>
#include <string>

#include "weft/core/named_tensor.h"
#include "weft/tests/support.h"

namespace weft::optim_test {

inline Tensor parameter(const Tensor& values) {
  Tensor p = values.clone();
  return p.set_requires_grad();
}

inline NamedTensors model(DType dtype = DType::f32) {
  return {{"embed.weight", parameter(test::random({5, 3}, 1, dtype))},
          {"blocks.0.weight", parameter(test::random({3, 3}, 2, dtype))},
          {"blocks.0.bias", parameter(test::random({3}, 3, dtype))},
          {"norm.weight", parameter(test::random({3}, 4, dtype))}};
}

inline void set_gradients(const NamedTensors& ps, std::uint64_t seed) {
  for (const NamedTensor& p : ps)
    p.tensor.set_grad(test::random(p.tensor.shape(), seed++, p.tensor.dtype()));
}

inline NamedTensors values_of(const NamedTensors& ps) {
  NamedTensors out;
  for (const NamedTensor& p : ps) out.push_back({p.name, p.tensor.detach().clone()});
  return out;
}

inline std::string differences(const NamedTensors& a, const NamedTensors& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (const std::string d = test::different_bits(a[i].tensor, b[i].tensor); !d.empty())
      return a[i].name + ": " + d;
  return "";
}

}  // namespace weft::optim_test
