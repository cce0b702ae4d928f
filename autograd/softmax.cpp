#include "weft/autograd/softmax.h"

#include "weft/autograd/axis.h"
#include "weft/autograd/elementwise.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/dispatch.h"
#include "weft/core/kernels/softmax.h"

namespace weft {

Tensor softmax(const Tensor& input, int dim) {
  const int axis = detail::axis_of("softmax", input, dim);
  if (!is_compute(input.dtype())) throw_bad_dtype("softmax", input.dtype(), kFloatingNames);
  if (axis != input.ndim() - 1) return transpose(softmax(transpose(input, axis, -1)), axis, -1);
  const Tensor x = contiguous(input);
  Tensor y = empty_like(x);
  dispatch<cpu::softmax_fwd, cuda::softmax_fwd>(x, y);
  if (recording(x))
    Tape::record("softmax", {&x}, {&y}, [sy = save(y, "y")](Backward& b) {
      const Tensor &p = sy.get(), &dy = b.dy();
      if (recording(p, dy)) return b.add(0, mul(p, sub(dy, sum(mul(dy, p), {-1}, true))));
      Tensor dx = empty_like(p);
      dispatch<cpu::softmax_bwd, cuda::softmax_bwd>(p, contiguous(dy), dx);
      b.add(0, std::move(dx));
    });
  return y;
}

Tensor log_softmax(const Tensor& input, int dim) {
  const int axis = detail::axis_of("log_softmax", input, dim);
  if (!is_compute(input.dtype())) throw_bad_dtype("log_softmax", input.dtype(), kFloatingNames);
  if (axis != input.ndim() - 1) return transpose(log_softmax(transpose(input, axis, -1)), axis, -1);
  const Tensor x = contiguous(input);
  Tensor y = empty_like(x);
  dispatch<cpu::log_softmax_fwd, cuda::log_softmax_fwd>(x, y);
  if (recording(x))
    Tape::record("log_softmax", {&x}, {&y}, [sy = save(y, "y")](Backward& b) {
      const Tensor &log_p = sy.get(), &dy = b.dy();
      if (recording(log_p, dy)) return b.add(0, sub(dy, mul(exp(log_p), sum(dy, {-1}, true))));
      Tensor dx = empty_like(log_p);
      dispatch<cpu::log_softmax_bwd, cuda::log_softmax_bwd>(log_p, contiguous(dy), dx);
      b.add(0, std::move(dx));
    });
  return y;
}

}  // namespace weft
