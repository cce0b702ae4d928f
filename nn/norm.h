#pragma once
#include "weft/nn/module.h"

namespace weft::nn {

/// Layer or RMS normalization over the last axis; one type, so that blocks can hold either.
struct Norm : Module {
  enum class Kind : std::uint8_t { layer, rms };
  Kind kind;
  double eps;
  Tensor weight;  // (dim), starts at 1
  Tensor bias;    // (dim), starts at 0; null for rms

  Norm(Kind kind, std::int64_t dim, double eps);
  /// x (..., dim) -> (..., dim)
  Tensor operator()(const Tensor& x) const;

  struct Added {
    Tensor y, sum;
  };
  /// sum = x + residual and y = norm(sum) in one pass over memory.
  Added operator()(const Tensor& x, const Tensor& residual) const;
  void visit(Visitor& v) override;
  std::string describe() const override;
};

/// y = (x - mean) * rstd * weight + bias
struct LayerNorm : Norm {
  explicit LayerNorm(std::int64_t dim, double eps = 1e-5) : Norm(Kind::layer, dim, eps) {}
};

/// y = x / rms(x) * weight
struct RMSNorm : Norm {
  explicit RMSNorm(std::int64_t dim, double eps = 1e-5) : Norm(Kind::rms, dim, eps) {}
};

}  // namespace weft::nn
