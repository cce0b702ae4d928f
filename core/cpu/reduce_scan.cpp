// Kernels that depend on the position along the reduced axis: argmax, argmin, cumulative sums.
#include "weft/core/kernels/reduce.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// Calls f(base, width, out_base) for stripes of neighbouring columns; each covers the whole axis.
template <class F>
void each_stripe(const ReduceExtent& e, F&& f) {
  const std::int64_t blocks = (e.inner + kReduceColumns - 1) / kReduceColumns;
  parallel_for(e.outer * blocks, e.reduced * std::min(e.inner, kReduceColumns),
               [&](std::int64_t first, std::int64_t last) {
                 for (std::int64_t item = first; item < last; ++item) {
                   const std::int64_t o = item / blocks, c = item % blocks * kReduceColumns;
                   f(o * e.reduced * e.inner + c, std::min(kReduceColumns, e.inner - c),
                     o * e.inner + c);
                 }
               });
}

template <bool largest, class T>
void arg_typed(const T* x, const ReduceExtent& e, std::int64_t* index) {
  each_stripe(e, [=](std::int64_t base, std::int64_t width, std::int64_t out) {
    T best[kReduceColumns];
    std::copy_n(x + base, width, best);
    std::fill_n(index + out, width, 0);
    for (std::int64_t r = 1; r < e.reduced; ++r) {
      const T* row = x + base + r * e.inner;
      for (std::int64_t c = 0; c < width; ++c) {
        // Strictly better, so that the first one stays; a NaN beats any number.
        const bool better = (largest ? row[c] > best[c] : row[c] < best[c]) ||
                            (row[c] != row[c] && best[c] == best[c]);
        if (better) {
          best[c] = row[c];
          index[out + c] = r;
        }
      }
    }
  });
}

template <class T, class O, class Total>
void cumsum_typed(const T* x, const ReduceExtent& e, bool reverse, O* out) {
  each_stripe(e, [=](std::int64_t base, std::int64_t width, std::int64_t) {
    Total running[kReduceColumns] = {};
    for (std::int64_t i = 0; i < e.reduced; ++i) {
      const std::int64_t row = base + (reverse ? e.reduced - 1 - i : i) * e.inner;
      for (std::int64_t c = 0; c < width; ++c) {
        running[c] += static_cast<Total>(x[row + c]);
        if constexpr (kIsHalf<O>)
          out[row + c] = O(static_cast<float>(running[c]));
        else
          out[row + c] = static_cast<O>(running[c]);
      }
    }
  });
}

}  // namespace

void arg_reduce(const Tensor& x, bool largest, const ReduceExtent& e, const Tensor& index) {
  dispatch_numeric(x.dtype(), [&]<class T>() {
    if (largest)
      arg_typed<true>(x.data<T>(), e, index.data<std::int64_t>());
    else
      arg_typed<false>(x.data<T>(), e, index.data<std::int64_t>());
  });
}

void cumsum(const Tensor& x, const ReduceExtent& e, bool reverse, const Tensor& out) {
  if (x.dtype() == DType::boolean)
    return cumsum_typed<bool, std::int64_t, std::uint64_t>(x.data<bool>(), e, reverse,
                                                           out.data<std::int64_t>());
  dispatch_numeric(x.dtype(), [&]<class T>() {
    if constexpr (std::is_integral_v<T>)  // wraps around
      cumsum_typed<T, std::int64_t, std::uint64_t>(x.data<T>(), e, reverse,
                                                   out.data<std::int64_t>());
    else
      cumsum_typed<T, T, double>(x.data<T>(), e, reverse, out.data<T>());
  });
}

}  // namespace weft::cpu
