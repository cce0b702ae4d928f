#pragma once
// The last step of a norm's backward: the sums of the chunks become the gradients of weight and
// bias.
#include "weft/core/tensor.h"
#include "weft/cuda/math.h"

namespace weft::cuda {

inline constexpr int kSumColumns = 32, kSumParts = 32;

/// The chunks' sums (chunks, C) of one gradient, and where the total goes.
template <class R>
struct NormSum {
  const R* partial = nullptr;
  void* out = nullptr;
  bool wide = false;  ///< out is R, not T
  bool adds = false;  ///< to what out holds

  NormSum(const R* from, const Tensor& to, bool add)
      : partial(from),
        out(to.defined() ? to.raw() : nullptr),
        wide(to.defined() && to.dtype() == dtype_of<R>()),
        adds(add) {}
};

// out[c] = partial[0][c] + partial[1][c] + ..., 32 columns a block: thread (c, p) adds every 32nd
// chunk, then one thread the parts. Blocks with y = 1 have the second gradient.
template <class T>
__global__ void __launch_bounds__(kSumColumns* kSumParts)
    norm_sums_kernel(std::int64_t chunks, std::int64_t C, NormSum<Real<T>> one,
                     NormSum<Real<T>> two) {
  using R = Real<T>;
  WEFT_SHARED(parts, R[kSumParts][kSumColumns]);
  const R* const partial = blockIdx.y == 0 ? one.partial : two.partial;
  void* const out = blockIdx.y == 0 ? one.out : two.out;
  const bool wide = blockIdx.y == 0 ? one.wide : two.wide;
  const bool adds = blockIdx.y == 0 ? one.adds : two.adds;
  const int column = static_cast<int>(threadIdx.x) % kSumColumns;
  const int part = static_cast<int>(threadIdx.x) / kSumColumns;
  const std::int64_t c = std::int64_t{blockIdx.x} * kSumColumns + column;
  R total = 0;
  if (c < C)
    for (std::int64_t k = part; k < chunks; k += kSumParts) total += partial[k * C + c];
  parts[part][column] = total;
  __syncthreads();
  if (part > 0 || c >= C) return;
  for (int p = 1; p < kSumParts; ++p) total += parts[p][column];
  const auto put = [&](auto* to) {
    using O = std::remove_pointer_t<decltype(to)>;
    to[c] = narrow<O>(adds ? widen(to[c]) + total : total);
  };
  wide ? put(static_cast<R*>(out)) : put(static_cast<T*>(out));
}

/// Both gradients in one launch; those without a target are skipped.
template <class T>
void norm_sums(std::int64_t chunks, std::int64_t C, NormSum<Real<T>> one, NormSum<Real<T>> two) {
  if (!one.out) one = two, two.out = nullptr;
  if (!one.out) return;
  launch(norm_sums_kernel<T>, grid_of(blocks_for(C, kSumColumns), two.out ? 2 : 1),
         kSumColumns * kSumParts, 0, chunks, C, one, two);
}

}  // namespace weft::cuda
