#pragma once
#include <cstdint>
#include <utility>

#include "weft/autograd/backward.h"
#include "weft/core/dispatch.h"
#include "weft/core/kernels/elementwise.h"
#include "weft/core/kernels/gemm_epilogue.h"
#include "weft/core/kernels/reduce.h"

namespace weft::detail {

/// Where a kernel writes the gradient of a small parameter, for example the weight of a norm. It is
/// the f32 sum of the step where there is one for a 16-bit parameter: nothing is rounded on the
/// way. On a GPU, where a launch costs as much as such a small sum, a kernel that can add does so.
class ParameterGradient {
 public:
  enum class Kernel : std::uint8_t { overwrites, can_add };

  Tensor to;          ///< null if none is needed
  bool adds = false;  ///< the kernel adds to what `to` holds

  ParameterGradient() = default;
  /// `like`: has the dtype and device of the parameter. `other`: the gradient that the same kernel
  /// writes; one tensor may be weight and bias.
  ParameterGradient(Backward& b, int input, const Shape& shape, const Tensor& like,
                    Kernel kernel = Kernel::overwrites, const Tensor& other = {})
      : input_(input) {
    if (!b.needs(input)) return;
    const DType dtype = like.dtype();
    const bool can_add = kernel == Kernel::can_add;
    GradientSum sum;
    if (b.sum_dtype(input, dtype) != dtype || (can_add && like.device().is_gpu()))
      sum = b.accumulator(input, shape, dtype, true);
    sum_ = sum.to;
    const bool taken = other.defined() && other.same(sum_);
    direct_ = sum_.defined() && !taken && (can_add || !sum.adds);
    adds = direct_ && sum.adds;
    to =
        direct_ ? sum_ : Tensor::empty(shape, sum_.defined() ? sum_.dtype() : dtype, like.device());
  }
  /// Call it when the kernel has written `to`.
  void give(Backward& b) {
    if (!to.defined() || direct_) return;
    if (!sum_.defined()) return b.add(input_, std::move(to));
    count_update(sum_);
    dispatch<cpu::add_scaled, cuda::add_scaled>(to, 1.0, sum_);
  }

 private:
  int input_ = 0;
  Tensor sum_;  ///< null: the tape adds
  bool direct_ = false;
};

/// out (N) = the sum of the rows of x (M, N), which has 16 bits; out may be f32.
inline void sum_rows(const Tensor& x, const Tensor& out) {
  const std::int64_t rows = x.dim(0), columns = x.dim(1);
  const Tensor partial =
      Tensor::empty({epilogue_partial(rows, columns, x.device())}, DType::f64, x.device());
  dispatch<cpu::reduce, cuda::reduce>(x, ReduceOp::sum, ReduceExtent{1, rows, columns}, Tensor(),
                                      1.0, partial, out);
}

}  // namespace weft::detail
