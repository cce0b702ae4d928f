#include "weft/autograd/values.h"

#include "weft/autograd/elementwise.h"
#include "weft/autograd/elementwise_common.h"
#include "weft/autograd/logic.h"

namespace weft {
namespace {

bool everywhere(const Tensor& mask) { return all(mask).item<bool>(); }

void check_host_pair(const char* op, const Tensor& a, const Tensor& b) {
  detail::check_tensor(op, "a", a);
  detail::check_tensor(op, "b", b);
  check(a.device() == b.device(), "{}: both operands must be on one device, got {} and {}", op,
        a.device(), b.device());
  check(!a.is_meta(), "{}: a must have values, got device {}", op, a.device());
}

}  // namespace

bool equal(const Tensor& a, const Tensor& b) {
  check_host_pair("equal", a, b);
  if (a.dtype() != b.dtype() || !(a.shape() == b.shape())) return false;
  const NoGradGuard off;
  return is_floating(a.dtype()) ? everywhere(eq(a.to(DType::f64), b.to(DType::f64)))
                                : everywhere(eq(a, b));
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol) {
  check_host_pair("allclose", a, b);
  const NoGradGuard off;
  const Tensor x = a.to(DType::f64), y = b.to(DType::f64);
  const Shape shape = broadcast_shapes("allclose", x.shape(), y.shape());
  // The bound of an infinite y is infinite.
  const Tensor near = logical_and(isfinite(y), le(abs(sub(x, y)), add(mul(abs(y), rtol), atol)));
  return shape.numel() == 0 || everywhere(logical_or(near, eq(x, y)));
}

}  // namespace weft
