#pragma once
// Elementwise kernels over tensors of one shape and any strides.
#include <algorithm>
#include <array>

#include "weft/cuda/device.h"

namespace weft::cuda {

/// The common shape of N operands with as few axes as their strides allow, last axis first.
template <int N>
struct Strided {
  int axes = 0;
  std::int64_t total = 1;
  std::int64_t length[kMaxDims];
  std::int64_t step[kMaxDims][N];

  /// Element offsets of element number i of the shape.
  __device__ void locate(std::int64_t i, std::int64_t (&at)[N]) const {
    for (int k = 0; k < N; ++k) at[k] = 0;
    if (total <= 0x7fffffff) {
      // 32-bit division is several times as fast.
      auto rest = static_cast<std::uint32_t>(i);
      for (int a = 0; a < axes; ++a) {
        const auto size = static_cast<std::uint32_t>(length[a]);
        const std::uint32_t next = rest / size, index = rest - next * size;
        rest = next;
        for (int k = 0; k < N; ++k) at[k] += index * step[a][k];
      }
    } else {
      for (int a = 0; a < axes; ++a) {
        const std::int64_t next = i / length[a], index = i - next * length[a];
        i = next;
        for (int k = 0; k < N; ++k) at[k] += index * step[a][k];
      }
    }
  }
};

template <int N>
Strided<N> strided(const std::array<const Tensor*, N>& tensors) {
  Strided<N> s;
  const Shape& shape = tensors[0]->shape();
  s.total = shape.numel();
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 1) continue;
    bool joins = s.axes > 0;  // continues the last axis in every operand
    for (int k = 0; k < N && joins; ++k)
      joins = tensors[static_cast<std::size_t>(k)]->strides()[i] ==
              s.step[s.axes - 1][k] * s.length[s.axes - 1];
    if (joins) {
      s.length[s.axes - 1] *= shape[i];
      continue;
    }
    s.length[s.axes] = shape[i];
    for (int k = 0; k < N; ++k)
      s.step[s.axes][k] = tensors[static_cast<std::size_t>(k)]->strides()[i];
    ++s.axes;
  }
  return s;
}

inline constexpr int kMapThreads = 256;

// Each thread makes V neighbouring results from 16-byte (or narrower) accesses; the last few
// elements, fewer than V, are left to the threads behind.
template <int V, class O, class F, class... I>
__global__ void __launch_bounds__(kMapThreads)
    map_dense_kernel(std::int64_t n, O* out, F f, const I*... in) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  const std::int64_t packs = n / V;
  if (i < packs) {
    Pack<O, V> result;
    const auto one = [&](const auto&... packed) {
#pragma unroll
      for (int j = 0; j < V; ++j) result[j] = f(packed[j]...);
    };
    one(load_pack<I, V>(in + i * V)...);
    store_pack(out + i * V, result);
  } else if (const std::int64_t at = packs * V + (i - packs); at < n) {
    out[at] = f(in[at]...);
  }
}

template <class F, int N, std::size_t... K, class... I>
__device__ inline auto call_at(const F& f, const std::int64_t (&at)[N], std::index_sequence<K...>,
                               const I*... in) {
  return f(in[at[K + 1]]...);
}

template <int N, class O, class F, class... I>
__global__ void __launch_bounds__(kMapThreads)
    map_strided_kernel(Strided<N> s, O* out, F f, const I*... in) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kMapThreads + threadIdx.x;
  if (i >= s.total) return;
  std::int64_t at[N];
  s.locate(i, at);
  out[at[0]] = call_at(f, at, std::index_sequence_for<I...>{}, in...);
}

/// out = f(operands...), element by element, for operands of out's shape and any strides (0 on a
/// broadcast axis). f takes stored values and returns a stored value.
template <class O, class... I, class F, class... T>
void map(const Tensor& out, F f, const T&... operands) {
  constexpr int kOperands = 1 + static_cast<int>(sizeof...(T));
  constexpr std::size_t kWidest = std::max({sizeof(O), sizeof(I)...});
  constexpr int kPack = 16 / static_cast<int>(kWidest);
  const std::int64_t n = out.numel();
  if (n == 0) return;
  const auto aligned = [](const Tensor& t) {
    return t.is_contiguous() &&
           reinterpret_cast<std::uintptr_t>(t.raw()) % (kPack * size_of(t.dtype())) == 0;
  };
  O* const po = static_cast<O*>(out.raw());
  if ((aligned(out) && ... && aligned(operands))) {
    const std::int64_t threads = n / kPack + n % kPack;
    launch(map_dense_kernel<kPack, O, F, I...>, grid_of(blocks_for(threads, kMapThreads)),
           kMapThreads, 0, n, po, f, static_cast<const I*>(operands.raw())...);
  } else {
    const auto s = strided<kOperands>({&out, &operands...});
    launch(map_strided_kernel<kOperands, O, F, I...>, grid_of(blocks_for(n, kMapThreads)),
           kMapThreads, 0, s, po, f, static_cast<const I*>(operands.raw())...);
  }
}

}  // namespace weft::cuda
