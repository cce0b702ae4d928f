#include "weft/nn/norm.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/layer_norm.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/rms_norm.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft::nn {

Norm::Norm(Kind kind, std::int64_t dim, double eps) : kind(kind), eps(eps) {
  check(dim > 0, "norm: dim must be at least 1, got {}", dim);
  check(eps >= 0, "norm: eps must be at least 0, got {}", eps);
  weight = make_parameter({dim}, weight_init());
  if (kind == Kind::layer) bias = make_parameter({dim}, Init::constant(0));
}

// The RMS norm of rows that are split over ranks: the sum of squares is that of all parts.
Tensor Norm::over_ranks(const Tensor& x) const {
  const Shard& s = shard_of(*this);
  const DType real = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor wide = cast(x, real);
  const double width = static_cast<double>(x.dim(-1) * s.row_ranks);
  const Tensor squares = s.sum_row(sum(square(wide), -1, true));
  const Tensor scale = rsqrt(add(mul(squares, 1 / width), eps));
  Tensor gain = cast(weight, real);
  if (kind == Kind::rms_centered) gain = add(gain, 1);
  return cast(mul(mul(wide, scale), gain), x.dtype());
}

Tensor Norm::operator()(const Tensor& x) const {
  if (kind == Kind::layer) return layer_norm(x, weight, bias, eps);
  if (shard_of(*this).sum_row) return over_ranks(x);
  return rms_norm(x, weight, eps, kind == Kind::rms_centered);
}

Norm::Added Norm::operator()(const Tensor& x, const Tensor& residual) const {
  if (kind == Kind::layer) {
    auto [y, sum] = layer_norm_residual(x, residual, weight, bias, eps);
    return {std::move(y), std::move(sum)};
  }
  auto [y, sum] = rms_norm_residual(x, residual, weight, eps, kind == Kind::rms_centered);
  return {std::move(y), std::move(sum)};
}

void Norm::visit(Visitor& v) {
  v("weight", weight, weight_init());
  v("bias", bias, Init::constant(0));
}

std::string Norm::describe() const {
  return message("{}({})", kind == Kind::layer ? "LayerNorm" : "RMSNorm", weight.dim(0));
}

}  // namespace weft::nn
