#pragma once
#include <functional>
#include <string>
#include <vector>

#include "weft/bench/models.h"
#include "weft/core/cpu/product.h"
#include "weft/core/gemm.h"
#include "weft/core/random.h"
#include "weft/core/tensor.h"

/// The matrix products of a training step that have a weight as an operand: attention has others.
namespace weft::bench {

struct StepProduct {
  std::string name;  ///< "qkv forward"
  enum Kind { forward, input_gradient, weight_gradient } kind;
  std::int64_t m, n, k, count;

  double flops() const {
    return 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }

  /// Computes it in the operand layouts of a layer: x w^T, dy w, dy^T x.
  std::function<void()> prepared() const {
    const bool trans_a = kind == weight_gradient, trans_b = kind == forward;
    const Tensor a = trans_a ? transposed(rand_normal({k, m})) : rand_normal({m, k});
    const Tensor b = trans_b ? transposed(rand_normal({n, k})) : rand_normal({k, n});
    const Tensor out = Tensor::empty({m, n});
    return [=] { gemm(a, b, out); };
  }
};

inline std::vector<StepProduct> step_products(const StepModel& m) {
  const std::int64_t rows = m.step_tokens(), dim = m.config.dim, layers = m.config.layers;
  struct Weight {
    std::string name;
    std::int64_t out, in, count;
  };
  const Weight weights[] = {{"qkv", 3 * dim, dim, layers},
                            {"proj", dim, dim, layers},
                            {"up", 4 * dim, dim, layers},
                            {"down", dim, 4 * dim, layers},
                            {"head", m.config.vocab, dim, 1}};
  std::vector<StepProduct> products;
  for (const Weight& w : weights) {
    products.push_back({w.name + " forward", StepProduct::forward, rows, w.out, w.in, w.count});
    products.push_back(
        {w.name + " input gradient", StepProduct::input_gradient, rows, w.in, w.out, w.count});
    products.push_back(
        {w.name + " weight gradient", StepProduct::weight_gradient, w.out, w.in, rows, w.count});
  }
  return products;
}

}  // namespace weft::bench
