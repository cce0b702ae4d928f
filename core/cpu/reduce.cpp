// Sums, extremes and related reductions. Short blocks are summed in f32 and their results in f64:
// nearly as fast as plain f32, with an error that does not grow with the length. A lane of a block
// adds up to 256 numbers, so a sum of equal numbers may be tens of ulp off. Sums of a function of x
// run in f64 throughout.
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

/// What a reduction of elements of type T reads: in place, or a block of bf16 or f16 widened to
/// f32. Loops exist for T only, not for each dtype that is read.
template <class T>
struct Source {
  const char* data;
  std::int64_t bytes;                                                // of an element
  void (*widen)(const void* x, float* y, std::int64_t n) = nullptr;  // null: elements are T
  void (*column_sums)(const void* x, std::int64_t n, std::int64_t stride, std::int64_t width,
                      float* sums) = nullptr;

  const void* at(std::int64_t element) const { return data + element * bytes; }
  const T* read(std::int64_t element, std::int64_t n, T* block) const {
    if constexpr (std::is_same_v<T, float>) {
      if (widen) {
        widen(at(element), block, n);
        return block;
      }
    }
    return static_cast<const T*>(at(element));
  }
};

template <class T>
Source<float> rows_of(const Tensor& x) {
  Source<float> s{static_cast<const char*>(x.raw()), sizeof(T)};
  if constexpr (kIsHalf<T>)
    s.widen = [](const void* from, float* y, std::int64_t n) {
      simd().of<T>().widen(static_cast<const T*>(from), y, n);
    };
  s.column_sums = [](const void* from, std::int64_t n, std::int64_t stride, std::int64_t width,
                     float* sums) {
    simd().of<T>().column_sums(static_cast<const T*>(from), n, stride, width, sums);
  };
  return s;
}

template <class T>
Source<T> source_of(const Tensor& x) {
  if constexpr (!std::is_same_v<T, float>)
    return {static_cast<const char*>(x.raw()), sizeof(T)};
  else if (x.dtype() == DType::bf16)
    return rows_of<bf16>(x);
  else if (x.dtype() == DType::f16)
    return rows_of<f16>(x);
  else
    return rows_of<float>(x);
}

/// out[at + i] = totals[i] * scale in the dtype of out; integers are not scaled.
template <class V>
using Store = void (*)(const V* totals, std::int64_t n, double scale, void* out, std::int64_t at);

template <class V>
Store<V> store_to(DType dtype) {
  return dispatch_numeric(dtype, []<class O>() -> Store<V> {
    return [](const V* totals, std::int64_t n, double scale, void* out, std::int64_t at) {
      O* to = static_cast<O*>(out) + at;
      for (std::int64_t i = 0; i < n; ++i) {
        if constexpr (std::is_integral_v<O> || std::is_integral_v<V>)
          to[i] = static_cast<O>(totals[i]);
        else if constexpr (kIsHalf<O>)
          to[i] = O(static_cast<float>(totals[i] * scale));
        else
          to[i] = static_cast<O>(totals[i] * scale);
      }
    };
  });
}

/// How one op reads an element (`take`); ReduceRule combines the results.
template <ReduceOp op, class T>
struct Rule : ReduceRule<op> {
  using ReduceRule<op>::kExtreme, ReduceRule<op>::join;
  /// Column sums with row kernels use vectors over wide parts of a row.
  static constexpr bool kVectors = op == ReduceOp::sum && std::is_same_v<T, float>;
  static constexpr std::int64_t kColumns = kVectors ? 4 * kReduceColumns : kReduceColumns;
  using Lane = std::conditional_t<std::is_integral_v<T> && !kExtreme, std::int64_t,
                                  std::conditional_t<op == ReduceOp::sum || kExtreme, T, double>>;

  static Lane take(Lane a, T x, double center) {
    if constexpr (op == ReduceOp::sum_offsets) {
      return a + (static_cast<double>(x) - center);
    } else if constexpr (op == ReduceOp::sum_squares) {
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
ReduceTotal<T> reduce_row(const Source<T>& source, std::int64_t first, std::int64_t n,
                          double center) {
  using Lane = typename R::Lane;
  ReduceTotal<T> total = R::template start<ReduceTotal<T>>();
  T block[kBlock];
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t count = std::min(n - begin, kBlock);
    const T* x = source.read(first + begin, count, block);
    std::int64_t i = 0;
    if (count >= kLanes) {
      Lane lanes[kLanes];
      for (Lane& lane : lanes) lane = R::template start<Lane>();
      for (; i + kLanes <= count; i += kLanes)
        for (int k = 0; k < kLanes; ++k) lanes[k] = R::take(lanes[k], x[i + k], center);
      for (const Lane lane : lanes) total = R::template join<ReduceTotal<T>>(total, lane);
    }
    for (; i < count; ++i)
      total =
          R::template join<ReduceTotal<T>>(total, R::take(R::template start<Lane>(), x[i], center));
  }
  return total;
}

/// `width` columns of n rows, `stride` elements apart.
template <class R, class T>
void reduce_columns(const Source<T>& source, std::int64_t first, std::int64_t n,
                    std::int64_t stride, std::int64_t width, const double* center,
                    ReduceTotal<T>* totals) {
  using Lane = typename R::Lane;
  for (std::int64_t c = 0; c < width; ++c) totals[c] = R::template start<ReduceTotal<T>>();
  T block[R::kColumns];
  for (std::int64_t begin = 0; begin < n; begin += kRowsOfBlock) {
    const std::int64_t end = std::min(n, begin + kRowsOfBlock);
    Lane lanes[R::kColumns];
    if constexpr (R::kVectors) {
      source.column_sums(source.at(first + begin * stride), end - begin, stride, width, lanes);
    } else {
      std::fill_n(lanes, width, R::template start<Lane>());
      for (std::int64_t r = begin; r < end; ++r) {
        const T* row = source.read(first + r * stride, width, block);
        for (std::int64_t c = 0; c < width; ++c)
          lanes[c] = R::take(lanes[c], row[c], center ? center[c] : 0);
      }
    }
    for (std::int64_t c = 0; c < width; ++c)
      totals[c] = R::template join<ReduceTotal<T>>(totals[c], lanes[c]);
  }
}

template <class R, class T>
void reduce_typed(const Tensor& x, const ReduceExtent& e, const Tensor& center, double scale,
                  const Tensor& partial, const Tensor& out) {
  const Source<T> source = source_of<T>(x);
  const Store<ReduceTotal<T>> store = store_to<ReduceTotal<T>>(out.dtype());
  void* po = out.raw();
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
                   const std::int64_t from = (o * e.reduced + r0) * e.inner + c0;
                   const double* about = pc ? pc + o * e.inner + c0 : nullptr;
                   ReduceTotal<T> totals[R::kColumns];
                   if (e.inner == 1)
                     totals[0] = reduce_row<R, T>(source, from, n, about ? *about : 0);
                   else
                     reduce_columns<R, T>(source, from, n, e.inner, width, about, totals);
                   if (pp)
                     std::copy_n(totals, width, pp + (o * chunks + chunk) * e.inner + c0);
                   else
                     store(totals, width, scale, po, o * e.inner + c0);
                 }
               });
  if (!pp) return;
  parallel_for(e.outer * e.inner, chunks, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const ReduceTotal<T>* p = pp + i / e.inner * chunks * e.inner + i % e.inner;
      ReduceTotal<T> total = p[0];
      for (std::int64_t k = 1; k < chunks; ++k)
        total = R::template join<ReduceTotal<T>>(total, p[k * e.inner]);
      store(&total, 1, scale, po, i);
    }
  });
}

}  // namespace

void reduce(const Tensor& x, ReduceOp op, const ReduceExtent& e, const Tensor& center, double scale,
            const Tensor& partial, const Tensor& out) {
  with_reduce(op, x.dtype(), [&]<ReduceOp R, class T>() {
    using Element = std::conditional_t<kIsHalf<T>, float, T>;
    reduce_typed<Rule<R, Element>, Element>(x, e, center, scale, partial, out);
  });
}

}  // namespace weft::cpu
