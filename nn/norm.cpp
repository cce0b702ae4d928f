#include "weft/nn/norm.h"

#include "weft/autograd/layer_norm.h"
#include "weft/autograd/rms_norm.h"
#include "weft/core/error.h"

namespace weft::nn {

Norm::Norm(Kind kind, std::int64_t dim, double eps) : kind(kind), eps(eps) {
  check(dim > 0, "norm: dim must be at least 1, got {}", dim);
  check(eps >= 0, "norm: eps must be at least 0, got {}", eps);
  weight = make_parameter({dim}, Init::constant(1));
  if (kind == Kind::layer) bias = make_parameter({dim}, Init::constant(0));
}

Tensor Norm::operator()(const Tensor& x) const {
  return kind == Kind::layer ? layer_norm(x, weight, bias, eps) : rms_norm(x, weight, eps);
}

Norm::Added Norm::operator()(const Tensor& x, const Tensor& residual) const {
  if (kind == Kind::layer) {
    auto [y, sum] = layer_norm_residual(x, residual, weight, bias, eps);
    return {std::move(y), std::move(sum)};
  }
  auto [y, sum] = rms_norm_residual(x, residual, weight, eps);
  return {std::move(y), std::move(sum)};
}

void Norm::visit(Visitor& v) {
  v("weight", weight, Init::constant(1));
  v("bias", bias, Init::constant(0));
}

std::string Norm::describe() const {
  return message("{}({})", kind == Kind::layer ? "LayerNorm" : "RMSNorm", weight.dim(0));
}

}  // namespace weft::nn
