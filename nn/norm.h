#pragma once
#include "weft/nn/module.h"
#include "weft/nn/shard.h"

namespace weft::nn {

/// Layer or RMS normalization over the last axis; one type, so that blocks can hold either.
/// rms_centered multiplies by 1 + weight, a sum in f32 for 16-bit weights.
struct Norm : Module {
  enum class Kind : std::uint8_t { layer, rms, rms_centered };
  Kind kind;
  double eps;
  Tensor weight;  // (dim), starts at 1; at 0 for rms_centered
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
  unsigned shard_members() const override { return Shard::kRowSum; }

 private:
  Init weight_init() const { return Init::constant(kind == Kind::rms_centered ? 0 : 1); }
  Tensor over_ranks(const Tensor& x) const;
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
