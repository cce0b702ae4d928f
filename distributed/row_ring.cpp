#include "weft/distributed/row_ring.h"

#include <vector>

#include "weft/autograd/operand.h"
#include "weft/core/error.h"
#include "weft/distributed/sum_ranks.h"

namespace weft::distributed::detail {

void check_row_operands(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  weft::detail::check_tensor(op, "x", x);
  weft::detail::check_tensor(op, "weight", weight);
  check(is_compute(x.dtype()), "{}: x must have dtype f32, f64, bf16 or f16, got {}", op,
        x.dtype());
  check(x.ndim() >= 2, "{}: x must have at least 2 axes, got shape {}", op, x.shape());
  check(weight.ndim() == 2 && weight.dim(1) == x.dim(-1),
        "{}: weight must have shape [N, {}] (last axis of x {}), got {}", op, x.dim(-1), x.shape(),
        weight.shape());
  check(weight.dtype() == x.dtype(), "{}: weight must have the dtype of x, {}, got {}", op,
        x.dtype(), weight.dtype());
  if (!bias.defined()) return;
  const Shape n{weight.dim(0)};
  check(bias.shape() == n && bias.dtype() == x.dtype(),
        "{}: bias must be {} with shape {} (rows of weight {}), got {} {}", op, x.dtype(), n,
        weight.shape(), bias.dtype(), bias.shape());
}

Shape shape_with(const Tensor& x, std::int64_t rows, std::int64_t columns) {
  Shape shape = x.shape();
  for (int i = 0; i + 1 < shape.size(); ++i) shape[i] = 1;
  shape[shape.size() - 2] = rows;
  shape[shape.size() - 1] = columns;
  return shape;
}

void add_parts(const Tensor& parts, const Tensor& out, int ranks) {
  if (out.is_meta()) return;
  thread_local std::vector<const void*> places;  // static for its memory only
  places.clear();
  for (int r = 0; r < ranks; ++r) places.push_back(rows(parts, r * out.dim(0), out.dim(0)).raw());
  combine_ranks(out.dtype(), Reduce::sum, out.raw(), places, out.numel());
}

}  // namespace weft::distributed::detail
