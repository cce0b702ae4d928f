#include "weft/autograd/sinkhorn.h"

#include "weft/autograd/router.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/sinkhorn.h"

namespace weft {

Tensor sinkhorn(const Tensor& logits, const Tensor& padding, std::int64_t rounds) {
  detail::check_router_logits("sinkhorn", logits, padding);
  const std::int64_t T = logits.dim(0), E = logits.dim(1);
  check(E >= 1 && E <= kRouterExperts, "sinkhorn: experts must be in [1, {}], got {}",
        kRouterExperts, E);
  check(rounds >= 1, "sinkhorn: rounds must be at least 1, got {}", rounds);
  const DType dtype = logits.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto make = [&](const Shape& s) { return Tensor::empty(s, dtype, logits.device()); };
  const Tensor out = make({T, E}), rows = make({T}), columns = make({E});
  const Tensor partials = make({kSinkhornParts, E});
  dispatch<cpu::sinkhorn, cuda::sinkhorn>(contiguous(logits.detach()),
                                          padding.defined() ? contiguous(padding) : padding, rounds,
                                          rows, columns, partials, out);
  return out;
}

}  // namespace weft
