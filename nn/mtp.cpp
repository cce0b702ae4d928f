#include "weft/nn/mtp.h"

#include <utility>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/view.h"
#include "weft/nn/recompute_layer.h"

namespace weft::nn {
namespace {

std::int64_t width(const Block& block) { return block.attn_norm.weight.dim(0); }
Norm norm_like(const Block& block) {
  return Norm(block.attn_norm.kind, width(block), block.attn_norm.eps);
}

}  // namespace

MtpDepth::MtpDepth(Block b)
    : enorm(norm_like(b)),
      hnorm(norm_like(b)),
      eh_proj(2 * width(b), width(b), {.bias = false, .init = Init::normal(0.02)}),
      block(std::move(b)),
      norm(norm_like(block)) {}

Trunk MtpDepth::operator()(const Tensor& embedded, const Tensor& h,
                           const TokenContext& context) const {
  const Tensor both = cat({enorm(embedded), hnorm(h)}, -1);
  const Stream x = block(Stream{eh_proj(both), {}, {}}, context);
  return {norm(x.delta, x.residual).y, x.aux};
}

Trunk MtpDepth::recomputed(const Tensor& embedded, const Tensor& h, const TokenContext& context,
                           const std::function<void(const Module&)>& before_use) const {
  TensorList out = detail::recompute_layer(context, {embedded, h},
                                           [this, use = before_use ? &before_use : nullptr](
                                               const TensorList& s, const TokenContext& here) {
                                             if (use) (*use)(*this);
                                             Trunk y = (*this)(s[0], s[1], here);
                                             TensorList results{y.hidden};
                                             if (y.aux.defined()) results.push_back(y.aux);
                                             return results;
                                           });
  return {std::move(out[0]), out.size() > 1 ? std::move(out[1]) : Tensor()};
}

void MtpDepth::visit(Visitor& v) {
  v("enorm", enorm);
  v("hnorm", hnorm);
  v("eh_proj", eh_proj);
  v("block", block);
  v("norm", norm);
}

Tensor piece_ends(const Tensor& positions) {
  const std::int64_t tokens = positions.numel();
  const Tensor at = positions.reshape({1, tokens});
  if (tokens == 0) return at.to(DType::boolean);
  const Tensor here = narrow(at, 1, 0, tokens - 1), right = narrow(at, 1, 1, tokens - 1);
  return pad(ne(right, add(here, 1)), 1, 0, 1, 1);
}

Tensor roll_left(const Tensor& x, const Packing& packing, double filler) {
  if (packing) packing.check_row(x);
  const std::int64_t tokens = x.dim(-1);
  if (tokens == 0) return x;
  const Tensor moved = pad(narrow(x, -1, 1, tokens - 1), -1, 0, 1, filler);
  if (!packing) return moved;
  return where(piece_ends(packing.positions), Tensor::full({}, filler, x.dtype(), x.device()),
               moved);
}

}  // namespace weft::nn
