#pragma once
#include "weft/autograd/recompute.h"
#include "weft/nn/token_context.h"

namespace weft::nn::detail {

/// layer(inputs, context) in a region that backward runs again. The tensors of the context are
/// inputs of the region as well.
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
