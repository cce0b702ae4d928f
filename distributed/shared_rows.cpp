#include "weft/distributed/shared_rows.h"

#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft::distributed {
namespace {

Tensor rows_from(const Tensor& t, std::int64_t first, std::int64_t count) {
  Shape shape = t.shape();
  shape[0] = count;
  return t.alias(shape, t.strides(), first * t.strides()[0]);
}

// `own`: no one else uses dy, which may hold the result.
Tensor summed(const Tensor& dy, ProcessGroup& group, const std::vector<SharedRows>& mine,
              std::int64_t all, bool own) {
  const NoGradGuard quiet;
  Shape shape = dy.shape();
  shape[0] = all;
  const Tensor sum = Tensor::zeros(shape, dy.dtype(), dy.device());
  for (const SharedRows& s : mine)
    rows_from(sum, s.whole, s.count).add_(rows_from(dy, s.own, s.count));
  group.at_once().all_reduce(sum).wait();
  const Tensor dx = own ? dy : dy.clone();
  for (const SharedRows& s : mine)
    rows_from(dx, s.own, s.count).copy_(rows_from(sum, s.whole, s.count));
  return dx;
}

}  // namespace

Tensor share_rows(const Tensor& x, ProcessGroup& group, const SharedRowsList& mine,
                  std::int64_t all) {
  weft::detail::check_tensor("share_rows", "x", x);
  check(is_compute(x.dtype()), "share_rows: x must have dtype f32, f64, bf16 or f16, got {}",
        x.dtype());
  if (group.size() == 1) return x;
  Tensor y = x.alias(x.shape(), x.strides(), 0);
  if (!recording(x)) return y;
  // The product that uses y would round its gradient to 16 bits in every micro-batch.
  const Tensor main = x.impl()->leaf ? x.main_grad() : Tensor();
  const bool wide = is_half(x.dtype()) && main.defined() && main.dtype() == DType::f32;
  Tape::record("share_rows", {&x}, {&y},
               [g = &group, mine, all, wide, dtype = x.dtype()](Backward& b) {
                 b.once_differentiable();
                 b.add_wide(0, summed(contiguous(b.dy()), *g, *mine, all, wide), dtype);
               });
  if (wide) Backward::sum_in_f32(y);
  return y;
}

}  // namespace weft::distributed
