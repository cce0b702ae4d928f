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

  /// Element offsets of element i of the shape.
  __device__ void locate(std::int64_t i, std::int64_t (&at)[N]) const {
    for (int k = 0; k < N; ++k) at[k] = 0;
    if (total <= 0x7fffffff) {
      // 32-bit division is several times faster.
      auto rest = static_cast<std::uint32_t>(i);
      for (int a = 0; a < axes; ++a) {
        const auto size = static_cast<std::uint32_t>(length[a]);
        const std::uint32_t next = rest / size, index = rest - next * size;
        rest = next;
        for (int k = 0; k < N; ++k) at[k] += index * step[a][k];
      }
    } else {
#pragma unroll 1
      for (int a = 0; a < axes; ++a) {
        const std::int64_t next = i / length[a], index = i - next * length[a];
        i = next;
        for (int k = 0; k < N; ++k) at[k] += index * step[a][k];
      }
    }
  }
};

template <int N>
[[gnu::noinline]] Strided<N> strided(const std::array<const Tensor*, N>& tensors) {
  Strided<N> s;
  const Shape& shape = tensors[0]->shape();
  s.total = shape.numel();
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 1) continue;
    bool joins = s.axes > 0;  // whether it continues the last axis in every operand
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

// Each thread computes V adjacent results with 16-byte (or narrower) accesses; the threads after
// the last pack handle the remaining elements, fewer than V.
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

namespace detail {

/// The number of elements when all tensors are dense and aligned to packs of `pack` elements, else
/// -1. Not inlined, like strided(): there are a hundred calls.
[[gnu::noinline]] inline std::int64_t count_dense(std::size_t pack,
                                                  std::initializer_list<const Tensor*> all) {
  for (const Tensor* t : all)
    if (!t->is_contiguous() ||
        reinterpret_cast<std::uintptr_t>(t->raw()) % (pack * size_of(t->dtype())) != 0)
      return -1;
  return (*all.begin())->numel();
}

}  // namespace detail

/// out = f(operands...), element by element, for operands of out's shape and any strides (0 on a
/// broadcast axis). f takes and returns stored values.
template <class O, class... I, class F, class... X>
void map_strided(const Tensor& out, const F& f, const X&... operands) {
  constexpr int N = 1 + static_cast<int>(sizeof...(X));
  const Strided<N> s = strided<N>({&out, &operands...});
  launch(map_strided_kernel<N, O, F, I...>, grid_of(blocks_for(s.total, kMapThreads)), kMapThreads,
         0, s, static_cast<O*>(out.raw()), f, static_cast<const I*>(operands.raw())...);
}

/// The same for dense operands; returns false if one has gaps or is not aligned.
template <class O, class... I, class F, class... X>
bool map_dense(const Tensor& out, const F& f, const X&... operands) {
  constexpr int kPack = 16 / static_cast<int>(std::max({sizeof(O), sizeof(I)...}));
  const std::int64_t n = detail::count_dense(kPack, {&out, &operands...});
  if (n < 0) return false;
  const std::int64_t threads = n / kPack + n % kPack;
  launch(map_dense_kernel<kPack, O, F, I...>, grid_of(blocks_for(threads, kMapThreads)),
         kMapThreads, 0, n, static_cast<O*>(out.raw()), f,
         static_cast<const I*>(operands.raw())...);
  return true;
}

/// Uses the dense kernel if possible, else the strided one.
template <class O, class... I, class F, class... X>
void map(const Tensor& out, const F& f, const X&... operands) {
  if (!map_dense<O, I...>(out, f, operands...)) map_strided<O, I...>(out, f, operands...);
}

/// The dtypes of models have dense kernels. f64 (for gradient checks) and integers are rare and use
/// the strided kernels, which are equally exact but slower.
template <class T>
inline constexpr bool kHasDense = std::is_same_v<T, float> || std::is_same_v<T, bf16>;
/// f.operator()<T>() for such a type; false for any other type, and when f returns false.
template <class F>
bool try_dense(DType t, F f) {
  return t == DType::f32    ? f.template operator()<float>()
         : t == DType::bf16 ? f.template operator()<bf16>()
                            : false;
}

/// map() for operands of a single type.
template <class T, class F, class... X>
void map_numbers(const Tensor& out, const F& f, const X&... operands) {
  if constexpr (kHasDense<T>)
    if (map_dense<T, std::conditional_t<true, T, X>...>(out, f, operands...)) return;
  map_strided<T, std::conditional_t<true, T, X>...>(out, f, operands...);
}

/// Calls f.operator()<op>() for an op known only at run time.
template <class Op, class F>
__device__ inline void with_running_op(Op op, F f) {
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (void)((op == Op(I) && (f.template operator()<Op(I)>(), true)) || ...);
  }
  (std::make_integer_sequence<int, static_cast<int>(Op::count)>{});
}

}  // namespace weft::cuda
