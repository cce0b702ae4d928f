#pragma once
// What an op with FP8 products keeps for backward, and where its gradients go.
#include <utility>

#include "weft/autograd/backward.h"
#include "weft/autograd/fp8_products.h"

namespace weft::fp8 {

/// A rounded operand on the tape.
struct SavedQuantized {
  Saved rows, columns, inverse;
  Fp8Tile tile = {0, 0};
  SavedQuantized() = default;
  SavedQuantized(const Quantized& q, const char* label)
      : rows(save(q.rows, label)),
        columns(save(q.columns, label)),
        inverse(save(q.inverse, "scale")),
        tile(q.tile) {}
  Quantized get() const { return {rows.get(), columns.get(), inverse.get(), tile}; }
};

/// Adds a product to the gradient of an input. multiply(out, accumulate) computes it.
template <class F>
void add_product_gradient(Backward& b, int input, DType dtype, const Shape& shape, Device device,
                          const F& multiply) {
  if (const GradientSum sum = b.accumulator(input, shape, dtype, true); sum.to.defined())
    return multiply(sum.to, sum.adds);
  Tensor dw = Tensor::empty(shape, dtype, device);
  multiply(dw, false);
  b.add(input, std::move(dw));
}

}  // namespace weft::fp8
