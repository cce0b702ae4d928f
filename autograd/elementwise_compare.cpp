// Comparisons, which have no gradient, and where().
#include "weft/autograd/elementwise.h"
#include "weft/autograd/elementwise_common.h"
#include "weft/autograd/view.h"
#include "weft/core/numbers.h"

namespace weft {

using namespace detail;

namespace {

Tensor compared(const char* name, const Tensor& a, const Tensor& b, CompareOp op) {
  check_pair(name, a, b);
  if (has_8_bits(a)) return compared(name, cast(a, DType::f32), cast(b, DType::f32), op);
  const Shape shape = common_shape(name, a, b);
  Tensor y = Tensor::empty(shape, DType::boolean, a.device());
  dispatch<cpu::compare, cuda::compare>(broadcast_alias(a, shape), broadcast_alias(b, shape), op,
                                        y);
  return y;
}

Tensor compared(const char* name, const Tensor& a, double b, CompareOp op) {
  check_tensor(name, "a", a);
  if (has_8_bits(a)) return compared(name, cast(a, DType::f32), b, op);
  Tensor y = Tensor::empty(a.shape(), DType::boolean, a.device());
  dispatch<cpu::compare_scalar, cuda::compare_scalar>(a, b, op, y);
  return y;
}

// A number as a scalar of x's dtype and device.
Tensor number_like(const char* op, const char* label, const Tensor& x, double value) {
  check_tensor(op, label, x);
  check_element(op, x.dtype(), value);
  return Tensor::full({}, value, x.dtype(), x.device());
}

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return compared("eq", a, b, CompareOp::eq); }
Tensor ne(const Tensor& a, const Tensor& b) { return compared("ne", a, b, CompareOp::ne); }
Tensor lt(const Tensor& a, const Tensor& b) { return compared("lt", a, b, CompareOp::lt); }
Tensor le(const Tensor& a, const Tensor& b) { return compared("le", a, b, CompareOp::le); }
Tensor gt(const Tensor& a, const Tensor& b) { return compared("gt", a, b, CompareOp::gt); }
Tensor ge(const Tensor& a, const Tensor& b) { return compared("ge", a, b, CompareOp::ge); }
Tensor eq(const Tensor& a, double b) { return compared("eq", a, b, CompareOp::eq); }
Tensor ne(const Tensor& a, double b) { return compared("ne", a, b, CompareOp::ne); }
Tensor lt(const Tensor& a, double b) { return compared("lt", a, b, CompareOp::lt); }
Tensor le(const Tensor& a, double b) { return compared("le", a, b, CompareOp::le); }
Tensor gt(const Tensor& a, double b) { return compared("gt", a, b, CompareOp::gt); }
Tensor ge(const Tensor& a, double b) { return compared("ge", a, b, CompareOp::ge); }

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  check_tensor("where", "condition", condition);
  check(condition.dtype() == DType::boolean, "where: condition must be bool, got {}",
        condition.dtype());
  check_pair("where", a, b);
  check(condition.device() == a.device(), "where: condition must be on device {}, got {}",
        a.device(), condition.device());
  const Shape pair = common_shape("where", a, b);
  const Shape shape =
      condition.shape() == pair ? pair : broadcast_shapes("where", condition.shape(), pair);
  Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  dispatch<cpu::where, cuda::where>(broadcast_alias(condition, shape), broadcast_alias(a, shape),
                                    broadcast_alias(b, shape), y);
  if (recording(a, b))
    Tape::record("where", {&a, &b}, {&y},
                 [s = save(condition, "condition"), sa = a.shape(), sb = b.shape()](Backward& g) {
                   const Tensor& c = s.get();
                   const Tensor zero = zero_of(g.dy());
                   if (g.needs(0)) g.add(0, to_operand(where(c, g.dy(), zero), sa));
                   if (g.needs(1)) g.add(1, to_operand(where(c, zero, g.dy()), sb));
                 });
  return y;
}

Tensor where(const Tensor& condition, const Tensor& a, double b) {
  return where(condition, a, number_like("where", "a", a, b));
}
Tensor where(const Tensor& condition, double a, const Tensor& b) {
  return where(condition, number_like("where", "b", b, a), b);
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  const Tensor filling = number_like("masked_fill", "x", x, value);
  check_tensor("masked_fill", "mask", mask);
  check(mask.dtype() == DType::boolean, "masked_fill: mask must be bool, got {}", mask.dtype());
  check(broadcast_shapes("masked_fill", x.shape(), mask.shape()) == x.shape(),
        "masked_fill: mask must broadcast to x's shape {}, got {}", x.shape(), mask.shape());
  return where(mask, filling, x);
}

}  // namespace weft
