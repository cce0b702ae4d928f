#include "weft/autograd/logic.h"

#include <limits>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/elementwise_common.h"

namespace weft {

using namespace detail;

namespace {

void check_truth(const char* op, const char* label, const Tensor& x) {
  check_tensor(op, label, x);
  if (!is_compute(x.dtype()) && !is_integral(x.dtype()) && x.dtype() != DType::boolean)
    throw_bad_dtype(op, x.dtype(), kComparableNames);
}

Tensor mask_of(const char* op, const char* label, const Tensor& x) {
  check_truth(op, label, x);
  return x.dtype() == DType::boolean ? x : ne(x, 0);
}

// The size of an element: integers, which abs() may not take, are compared as they are.
Tensor size_of_each(const Tensor& x) { return is_compute(x.dtype()) ? abs(x.detach()) : x; }

}  // namespace

Tensor isnan(const Tensor& x) {
  check_truth("isnan", "x", x);
  return ne(x, x);
}

Tensor isinf(const Tensor& x) {
  check_truth("isinf", "x", x);
  return eq(size_of_each(x), std::numeric_limits<double>::infinity());
}

Tensor isfinite(const Tensor& x) {
  check_truth("isfinite", "x", x);
  return lt(size_of_each(x), std::numeric_limits<double>::infinity());
}

Tensor logical_and(const Tensor& a, const Tensor& b) {
  const Tensor x = mask_of("logical_and", "a", a), z = mask_of("logical_and", "b", b);
  check_pair("logical_and", x, z);
  common_shape("logical_and", x, z);
  return where(x, z, zero_of(z));
}

Tensor logical_or(const Tensor& a, const Tensor& b) {
  const Tensor x = mask_of("logical_or", "a", a), z = mask_of("logical_or", "b", b);
  check_pair("logical_or", x, z);
  common_shape("logical_or", x, z);
  return where(x, Tensor::ones({}, DType::boolean, z.device()), z);
}

Tensor logical_not(const Tensor& x) {
  check_truth("logical_not", "x", x);
  return eq(x, 0);
}

Tensor any(const Tensor& x) { return gt(sum(mask_of("any", "x", x)), 0); }
Tensor any(const Tensor& x, int dim, bool keepdim) {
  return gt(sum(mask_of("any", "x", x), {dim}, keepdim), 0);
}
Tensor all(const Tensor& x) { return eq(sum(logical_not(mask_of("all", "x", x))), 0); }
Tensor all(const Tensor& x, int dim, bool keepdim) {
  return eq(sum(logical_not(mask_of("all", "x", x)), {dim}, keepdim), 0);
}

}  // namespace weft
