#pragma once
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/nn/token_context.h"

namespace weft::nn {

/// f(row, context) for each row of x (B, ...), with the row's own cache, and the results side by
/// side. For layers whose work depends on how many tokens a row has behind it.
/// Throws Error unless the context has a cache for each row.
template <class F>
Tensor each_row(const Tensor& x, const TokenContext& context, const F& f) {
  check(std::ssize(context.rows) == x.dim(0), "each_row: {} rows must have a cache each, got {}",
        x.dim(0), context.rows.size());
  TensorList out;
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    TokenContext own = context;
    own.rows = {};
    own.cache = context.rows[static_cast<std::size_t>(i)];
    out.push_back(f(x.narrow(0, i, 1), own));
  }
  return cat(out, 0);
}

}  // namespace weft::nn
