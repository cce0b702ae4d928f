// The ops of autograd/view.h that copy: to row-major order, another dtype, another device.
#include "weft/core/kernels/copy.h"

#include "weft/autograd/operand.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/cuda.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"

namespace weft {
namespace {

using detail::check_tensor;

Tensor copied(const char* op, const Tensor& x) {
  check_tensor(op, "x", x);
  Tensor y = empty_like(x);
  dispatch<cpu::copy, cuda::copy>(x, y);
  if (recording(x)) Tape::record(op, {&x}, {&y}, [](Backward& b) { b.add(0, b.dy()); });
  return y;
}

}  // namespace

Tensor contiguous(const Tensor& x) {
  return x.defined() && x.is_contiguous() ? x : copied("contiguous", x);
}

Tensor clone(const Tensor& x) { return copied("clone", x); }

Tensor cast(const Tensor& x, DType dtype) {
  check_tensor("cast", "x", x);
  if (x.dtype() == dtype) return x;
  Tensor y = Tensor::empty(x.shape(), dtype, x.device());
  dispatch<cpu::copy, cuda::copy>(x, y);
  if (is_compute(dtype) && recording(x))
    Tape::record("cast", {&x}, {&y},
                 [from = x.dtype()](Backward& b) { b.add(0, cast(b.dy(), from)); });
  return y;
}

Tensor to_device(const Tensor& x, Device device) {
  check_tensor("to_device", "x", x);
  if (x.device() == device) return x;
  check(!x.is_meta() || device.is_meta(),
        "to_device: a tensor on {} has no values to move to {}, got shape {}", x.device(), device,
        x.shape());
  Tensor y = Tensor::empty(x.shape(), x.dtype(), device);
  if (!device.is_meta()) cuda::detail::copy_across(contiguous(x), y);
  if (!device.is_meta() && recording(x))
    Tape::record("to_device", {&x}, {&y},
                 [from = x.device()](Backward& b) { b.add(0, to_device(b.dy(), from)); });
  return y;
}

}  // namespace weft
