// Sums, extremes and related reductions. Short blocks are summed in f32 and their results in f64:
// nearly as fast as plain f32, and correct to the last bit or two for any length.
#include "weft/core/kernels/reduce.h"

#include <cmath>

#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/operand.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

constexpr int kLanes = 16;
constexpr std::int64_t kBlock = 4096;      // elements of a row between two f64 additions
constexpr std::int64_t kRowsOfBlock = 64;  // the same for columns

template <class T>
using Value = Compute<T>;

/// How one op reads an element (`take`); ReduceRule combines the results.
template <ReduceOp op, class T>
struct Rule : ReduceRule<op> {
  using ReduceRule<op>::kExtreme, ReduceRule<op>::join;
  /// Column sums with row kernels use vectors over wide parts of a row.
  static constexpr bool kVectors = op == ReduceOp::sum && kHasRows<T>;
  static constexpr std::int64_t kColumns = kVectors ? 4 * kReduceColumns : kReduceColumns;
  using Lane =
      std::conditional_t<std::is_integral_v<T> && !kExtreme, std::int64_t,
                         std::conditional_t<op == ReduceOp::sum || kExtreme, Value<T>, double>>;

  static Lane take(Lane a, T x, double center) {
    if constexpr (op == ReduceOp::sum_squares) {
      const double d = static_cast<double>(x) - center;
      return a + d * d;
    } else if constexpr (op == ReduceOp::sum_exp) {
      return a + std::exp(static_cast<double>(x) - center);
    } else {
      return join(a, static_cast<Lane>(x));
    }
  }
};

/// n adjacent elements.
template <class R, class T>
ReduceTotal<T> reduce_row(const T* x, std::int64_t n, double center) {
  using Lane = typename R::Lane;
  ReduceTotal<T> total = R::template start<ReduceTotal<T>>();
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = std::min(n, begin + kBlock);
    std::int64_t i = begin;
    if (end - begin >= kLanes) {
      Lane lanes[kLanes];
      for (Lane& lane : lanes) lane = R::template start<Lane>();
      for (; i + kLanes <= end; i += kLanes)
        for (int k = 0; k < kLanes; ++k) lanes[k] = R::take(lanes[k], x[i + k], center);
      for (const Lane lane : lanes) total = R::template join<ReduceTotal<T>>(total, lane);
    }
    for (; i < end; ++i)
      total =
          R::template join<ReduceTotal<T>>(total, R::take(R::template start<Lane>(), x[i], center));
  }
  return total;
}

/// `width` columns of n rows, `stride` elements apart.
template <class R, class T>
void reduce_columns(const T* x, std::int64_t n, std::int64_t stride, std::int64_t width,
                    const double* center, ReduceTotal<T>* totals) {
  using Lane = typename R::Lane;
  for (std::int64_t c = 0; c < width; ++c) totals[c] = R::template start<ReduceTotal<T>>();
  for (std::int64_t begin = 0; begin < n; begin += kRowsOfBlock) {
    const std::int64_t end = std::min(n, begin + kRowsOfBlock);
    Lane lanes[R::kColumns];
    if constexpr (R::kVectors) {
      simd().of<T>().column_sums(x + begin * stride, end - begin, stride, width, lanes);
    } else {
      std::fill_n(lanes, width, R::template start<Lane>());
      for (std::int64_t r = begin; r < end; ++r) {
        const T* row = x + r * stride;
        for (std::int64_t c = 0; c < width; ++c)
          lanes[c] = R::take(lanes[c], row[c], center ? center[c] : 0);
      }
    }
    for (std::int64_t c = 0; c < width; ++c)
      totals[c] = R::template join<ReduceTotal<T>>(totals[c], lanes[c]);
  }
}

template <class O, class V>
O finished(V total, double scale) {
  if constexpr (std::is_integral_v<O> || std::is_integral_v<V>)
    return static_cast<O>(total);
  else if constexpr (kIsHalf<O>)
    return O(static_cast<float>(total * scale));
  else
    return static_cast<O>(total * scale);
}

template <class R, class T, class O>
void reduce_typed(const Tensor& x, const ReduceExtent& e, const Tensor& center, double scale,
                  const Tensor& partial, const Tensor& out) {
  const T* px = x.data<T>();
  O* po = out.data<O>();
  const double* pc = data_or_null<double>(center);
  const std::int64_t chunks = reduce_chunks(e, kCpu), step = (e.reduced + chunks - 1) / chunks;
  ReduceTotal<T>* pp = chunks > 1 ? partial.data<ReduceTotal<T>>() : nullptr;
  // Columns are distributed evenly, in whole vectors.
  const std::int64_t blocks = (e.inner + R::kColumns - 1) / R::kColumns;
  const std::int64_t share =
      blocks ? ((e.inner + blocks - 1) / blocks + kLanes - 1) / kLanes * kLanes : 0;

  parallel_for(e.outer * chunks * blocks, step * std::min(e.inner, share) + 1,
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t item = first; item < last; ++item) {
                   const std::int64_t block = item % blocks, chunk = item / blocks % chunks;
                   const std::int64_t o = item / blocks / chunks, c0 = block * share;
                   const std::int64_t width = std::clamp<std::int64_t>(e.inner - c0, 0, share);
                   const std::int64_t r0 = std::min(e.reduced, chunk * step);
                   const std::int64_t n = std::min(step, e.reduced - r0);
                   const T* from = px + (o * e.reduced + r0) * e.inner + c0;
                   const double* about = pc ? pc + o * e.inner + c0 : nullptr;
                   ReduceTotal<T> totals[R::kColumns];
                   if (e.inner == 1)
                     totals[0] = reduce_row<R>(from, n, about ? *about : 0);
                   else
                     reduce_columns<R>(from, n, e.inner, width, about, totals);
                   if (pp)
                     std::copy_n(totals, width, pp + (o * chunks + chunk) * e.inner + c0);
                   else
                     for (std::int64_t c = 0; c < width; ++c)
                       po[o * e.inner + c0 + c] = finished<O>(totals[c], scale);
                 }
               });
  if (!pp) return;
  parallel_for(e.outer * e.inner, chunks, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const ReduceTotal<T>* p = pp + i / e.inner * chunks * e.inner + i % e.inner;
      ReduceTotal<T> total = p[0];
      for (std::int64_t k = 1; k < chunks; ++k)
        total = R::template join<ReduceTotal<T>>(total, p[k * e.inner]);
      po[i] = finished<O>(total, scale);
    }
  });
}

template <ReduceOp op, class T>
void reduce_op(const Tensor& x, const ReduceExtent& e, const Tensor& center, double scale,
               const Tensor& partial, const Tensor& out) {
  using R = Rule<op, T>;
  if constexpr (!std::is_same_v<T, bool>) {
    if (out.dtype() == dtype_of<T>())
      return reduce_typed<R, T, T>(x, e, center, scale, partial, out);
  }
  if constexpr (op == ReduceOp::sum && kIsHalf<T>) {
    if (out.dtype() == DType::f32)
      return reduce_typed<R, T, float>(x, e, center, scale, partial, out);
  }
  if constexpr (!std::is_same_v<T, ReduceTotal<T>>)
    reduce_typed<R, T, ReduceTotal<T>>(x, e, center, scale, partial, out);
}

}  // namespace

void reduce(const Tensor& x, ReduceOp op, const ReduceExtent& e, const Tensor& center, double scale,
            const Tensor& partial, const Tensor& out) {
  with_reduce(op, x.dtype(),
              [&]<ReduceOp R, class T>() { reduce_op<R, T>(x, e, center, scale, partial, out); });
}

}  // namespace weft::cpu
