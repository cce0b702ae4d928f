#pragma once
#include "weft/autograd/recompute.h"
#include "weft/nn/token_context.h"

namespace weft::nn::detail {

/// Runs layer(inputs, context) in a region that backward recomputes. The tensors of the context
/// become inputs of the region too.
template <class F>
TensorList recompute_layer(const TokenContext& context, TensorList inputs, const F& layer) {
  const int n = inputs.size();
  const Packing& p = context.packing;
  for (const Tensor& t : {p.cu_seqlens, p.positions, p.padding}) inputs.push_back(t);
  TokenContext rest = context;
  rest.packing = {};
  return recompute(
      [rest, n, layer, checked = p.checked()](const TensorList& s) {
        TokenContext here = rest;
        here.packing = {s[n], s[n + 1], s[n + 2]};
        if (checked) here.packing.mark_checked();
        return layer(s, here);
      },
      inputs);
}

}  // namespace weft::nn::detail
