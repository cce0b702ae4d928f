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
  // Rows with a mask are not packed.
  const bool masked = context.mask.defined();
  for (const Tensor& t : {masked ? context.mask : p.cu_seqlens, p.positions, p.padding})
    inputs.push_back(t);
  TokenContext rest = context;
  rest.mask = {};
  rest.packing.cu_seqlens = rest.packing.positions = rest.packing.padding = rest.packing.known = {};
  return recompute(
      [rest, n, layer, masked, checked = p.checked()](const TensorList& s) {
        TokenContext here = rest;
        (masked ? here.mask : here.packing.cu_seqlens) = s[n];
        here.packing.positions = s[n + 1];
        here.packing.padding = s[n + 2];
        if (checked) here.packing.mark_checked();
        return layer(s, here);
      },
      inputs);
}

}  // namespace weft::nn::detail
