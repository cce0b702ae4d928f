#pragma once
#include <algorithm>
#include <limits>
#include <type_traits>

#include "weft/core/tensor.h"

namespace weft {

/// A contiguous tensor viewed as (outer, reduced, inner): the axes left of the reduced axes, the
/// reduced axes, and the axes right of them.
struct ReduceExtent {
  std::int64_t outer = 1, reduced = 1, inner = 1;
};

/// Columns that are summed side by side.
inline constexpr std::int64_t kReduceColumns = 128;

/// Number of chunks of the reduced axis, for tensors with too few results to occupy several threads
/// (or a GPU). It depends on the shape only, and so does the order of the sum.
inline std::int64_t reduce_chunks(const ReduceExtent& e, Device device) {
  const bool gpu = device.is_gpu();
  const std::int64_t most = gpu ? 1024 : 64;
  const std::int64_t items = e.outer * ((e.inner + kReduceColumns - 1) / kReduceColumns);
  if (items == 0 || items >= most) return 1;
  const std::int64_t elements = e.outer * e.reduced * e.inner;
  const std::int64_t least = gpu ? items << 13 : 1 << 15;
  return std::clamp<std::int64_t>(elements / least, 1, most / items);
}

enum class ReduceOp : std::uint8_t {
  sum,
  max,
  min,
  sum_offsets,  ///< of x - center
  sum_squares,  ///< of x - center, or of x when center is null
  sum_exp       ///< of x - center
};

/// The dtype in which results of elements of type T are summed.
template <class T>
using ReduceTotal = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;

/// How partial results combine, on every device.
template <ReduceOp op>
struct ReduceRule {
  static constexpr bool kExtreme = op == ReduceOp::max || op == ReduceOp::min;

  template <class V>
  static constexpr V start() {
    using Limits = std::numeric_limits<V>;
    if constexpr (!kExtreme)
      return V(0);
    else if constexpr (op == ReduceOp::max)
      return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    else
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
  /// The largest or smallest, where NaN wins and stays, or the sum, where integers wrap around.
  template <class V>
  static constexpr V join(V a, V b) {
    if constexpr (op == ReduceOp::max)
      return b > a || b != b ? b : a;
    else if constexpr (op == ReduceOp::min)
      return b < a || b != b ? b : a;
    else if constexpr (std::is_integral_v<V>)
      return static_cast<V>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    else
      return a + b;
  }
};

/// Calls f.operator()<op, T>() for the dtypes that the reduction supports.
template <class F>
void with_reduce(ReduceOp op, DType dtype, F&& f) {
  if (op == ReduceOp::sum_offsets)
    return dispatch_floating(dtype,
                             [&]<class T>() { f.template operator()<ReduceOp::sum_offsets, T>(); });
  if (op == ReduceOp::sum_squares)
    return dispatch_floating(dtype,
                             [&]<class T>() { f.template operator()<ReduceOp::sum_squares, T>(); });
  if (op == ReduceOp::sum_exp)
    return dispatch_floating(dtype,
                             [&]<class T>() { f.template operator()<ReduceOp::sum_exp, T>(); });
  if (dtype == DType::boolean) return f.template operator()<ReduceOp::sum, bool>();
  dispatch_numeric(dtype, [&]<class T>() {
    if (op == ReduceOp::sum)
      f.template operator()<ReduceOp::sum, T>();
    else if (op == ReduceOp::max)
      f.template operator()<ReduceOp::max, T>();
    else
      f.template operator()<ReduceOp::min, T>();
  });
}

/// out = scale * reduction of x. out has outer x inner elements, in x's dtype or the dtype of sums
/// (f64 for floating-point x, i64 for others); a sum of bf16 may go to f32. `center` (null or outer
/// x inner, f64) is subtracted first. `partial` has the dtype of sums and outer x reduce_chunks() x
/// inner elements (null for one chunk). Sums are f32 over short blocks, whose results are added in
/// f64, always in the same order.
using ReduceKernel = void(const Tensor& x, ReduceOp op, const ReduceExtent& extent,
                          const Tensor& center, double scale, const Tensor& partial,
                          const Tensor& out);
/// index (i64, outer x inner) = position of the first largest or smallest element along the reduced
/// axis. NaN counts as both the largest and the smallest.
using ArgReduceKernel = void(const Tensor& x, bool largest, const ReduceExtent& extent,
                             const Tensor& index);
/// out[r] = x[0] + ... + x[r] along the reduced axis; from the other end when `reverse`. out has
/// x's dtype, or i64 for integers and bool.
using CumsumKernel = void(const Tensor& x, const ReduceExtent& extent, bool reverse,
                          const Tensor& out);

namespace cpu {
ReduceKernel reduce;
ArgReduceKernel arg_reduce;
CumsumKernel cumsum;
}  // namespace cpu
namespace cuda {
ReduceKernel reduce;
ArgReduceKernel arg_reduce;
CumsumKernel cumsum;
}  // namespace cuda

}  // namespace weft
