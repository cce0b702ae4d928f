#include "weft/autograd/dropout.h"

#include <cmath>

#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/dropout.h"

namespace weft {

Tensor dropout(const Tensor& x, double p, const RandomKey& key, bool training) {
  check(p >= 0 && p <= 1, "dropout: p must be in [0, 1], got {}", p);
  detail::check_tensor("dropout", "x", x);
  check(is_compute(x.dtype()), "dropout: x must have dtype f32, f64, bf16 or f16, got {}",
        x.dtype());
  if (p == 0 || !training) return x;

  // A 24-bit uniform k * 2^-24 is below p exactly if k is below this threshold.
  const auto threshold = static_cast<std::uint32_t>(std::ceil(p * 0x1p24));
  const double scale = p < 1 ? 1 / (1 - p) : 0;
  const Tensor source = contiguous(x);
  Tensor y = empty_like(source);
  dispatch<cpu::dropout, cuda::dropout>(source, key, threshold, scale, y);

  if (recording(source)) {
    // Linear in x, so backward is the same op with the same key; second order works too.
    Tape::record("dropout", {&source}, {&y},
                 [p, key](Backward& b) { b.add(0, dropout(b.dy(), p, key)); });
  }
  return y;
}

}  // namespace weft
