#include "weft/cuda/row_groups.h"

namespace weft::cuda {

using namespace fp8_groups;

namespace {

__global__ void __launch_bounds__(kThreads) fp8_zero_kernel(float* amax, std::int64_t n) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) amax[i] = 0;
}

// A block raises amax to the largest magnitude of its share of a group. The result of a maximum
// does not depend on the order.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    fp8_amax_kernel(Groups groups, std::int64_t cols, bool one, const T* x, int* amax) {
  WEFT_SHARED(shared, int[kThreads / kWarp]);
  const int e = static_cast<int>(blockIdx.y);
  const std::int64_t end = groups.first_row[e + 1] * cols;
  int most = 0;
  for (std::int64_t i =
           groups.first_row[e] * cols + (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
       i < end; i += std::int64_t{gridDim.x} * kThreads * V) {
    const auto v = load_pack<T, V>(x + i);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const int m = magnitude(widen(v[j]));
      most = m > most ? m : most;
    }
  }
  most = block_reduce<kThreads>(most, shared, 0, Max{});
  if (threadIdx.x == 0 && most > 0) atomicMax(amax + (one ? 0 : groups.first + e), most);
}

__global__ void __launch_bounds__(kThreads)
    fp8_scale_kernel(std::int64_t n, const float* amax, float largest, Fp8Scaling how, float* scale,
                     float* inverse) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= n) return;
  const float s = fp8_scale_of(amax[i], largest, how);
  scale[i] = s;
  inverse[i] = 1.0f / s;
}

// Without a transposed copy: four or more neighbours at once.
template <class Q, class T, int V>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(Groups groups, std::int64_t cols, bool one, const T* x, const float* scale,
                    std::uint8_t* out) {
  const int e = static_cast<int>(blockIdx.y);
  const std::int64_t i =
      groups.first_row[e] * cols + (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= groups.first_row[e + 1] * cols) return;
  const float s = scale[one ? 0 : groups.first + e];
  const auto v = load_pack<T, V>(x + i);
  Pack<std::uint8_t, V> codes;
#pragma unroll
  for (int j = 0; j < V; ++j) codes[j] = fp8_code<Q>(widen(v[j]) * s);
  store_pack(out + i, codes);
}

// A number as a code; a code stays as it is.
template <class Q, class T>
__device__ inline std::uint8_t code_of(T v, float scale) {
  if constexpr (std::is_same_v<Q, T>)
    return v.bits;
  else
    return fp8_code<Q>(widen(v) * scale);
}

constexpr int kTile = 64, kTileWords = kTile / 4;

// A tile of 64 x 64: reads x once, writes rows and columns four codes at a time where they are
// whole.
template <class Q, class T>
__global__ void __launch_bounds__(kThreads)
    quantize_transposed_kernel(Groups groups, std::int64_t cols, bool one, bool whole, const T* x,
                               const float* scale, std::uint8_t* out, std::uint8_t* transposed) {
  WEFT_SHARED(tile, std::uint8_t[kTile][kTile + 4]);
  const int e = static_cast<int>(blockIdx.y);
  const std::int64_t first = groups.first_row[e], rows = groups.first_row[e + 1] - first;
  const std::int64_t across = (cols + kTile - 1) / kTile;
  const std::int64_t top = blockIdx.x / across * kTile, left = blockIdx.x % across * kTile;
  if (top >= rows) return;
  const float s = scale ? scale[one ? 0 : groups.first + e] : 1.0f;
  const int word = static_cast<int>(threadIdx.x) % kTileWords * 4;
  for (int r = static_cast<int>(threadIdx.x) / kTileWords; r < kTile; r += kThreads / kTileWords) {
    const std::int64_t row = top + r, col = left + word;
    Pack<std::uint8_t, 4> codes{};
    if (row < rows && col < cols) {
      const std::int64_t at = (first + row) * cols + col;
      if (whole) {
        const auto v = load_pack<T, 4>(x + at);
#pragma unroll
        for (int j = 0; j < 4; ++j) codes[j] = code_of<Q>(v[j], s);
        if (out) store_pack(out + at, codes);
      } else {
        for (int j = 0; j < 4 && col + j < cols; ++j) {
          codes[j] = code_of<Q>(x[at + j], s);
          if (out) out[at + j] = codes[j];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) tile[r][word + j] = codes[j];
  }
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x) / kTileWords; c < kTile; c += kThreads / kTileWords) {
    const std::int64_t col = left + c, row = top + word;
    if (col >= cols || row >= rows) continue;
    std::uint8_t* const to = transposed + first * cols + col * rows + row;
    Pack<std::uint8_t, 4> codes;
#pragma unroll
    for (int j = 0; j < 4; ++j) codes[j] = tile[word + j][c];
    if (whole && rows % 4 == 0)
      store_pack(to, codes);
    else
      for (int j = 0; j < 4 && row + j < rows; ++j) to[j] = codes[j];
  }
}

// One block of threads for each operand.
__global__ void __launch_bounds__(kThreads)
    fp8_roll_kernel(std::int64_t rows, Fp8Limits limits, Fp8Scaling how, float* history,
                    float* scale) {
  WEFT_SHARED(shared, int[kThreads / kWarp]);
  const int slot = static_cast<int>(blockIdx.x);
  const auto at = [=](std::int64_t row) { return history + 3 * row + slot; };
  int most = 0;
  for (std::int64_t r = threadIdx.x; r < rows; r += kThreads) {
    const int m = magnitude(*at(r));
    most = m > most ? m : most;
  }
  most = block_reduce<kThreads>(most, shared, 0, Max{});
  if (threadIdx.x == 0 && most > 0 && most < 0x7f800000)
    scale[slot] =
        fp8_scale_of(fp8_bits<float>(most), slot == 2 ? limits.gradient : limits.forward, how);
  // From the end, so that no row is overwritten before it is read.
  for (std::int64_t last = rows - 1; last > 0; last -= kThreads) {
    const std::int64_t r = last - threadIdx.x;
    const float above = r > 0 ? *at(r - 1) : 0;
    __syncthreads();
    if (r > 0) *at(r) = above;
    __syncthreads();
  }
  if (threadIdx.x == 0) *at(0) = 0;
}

__global__ void fp8_take_kernel(const float* stored, float* scale, float* inverse) {
  const float s = *stored == 0 ? 1.0f : *stored;
  *scale = s;
  *inverse = 1.0f / s;
}

}  // namespace

void fp8_amax(const Tensor& x, const RowGroups& all, bool keep, const Tensor& amax) {
  constexpr std::int64_t kBlocks = 264;  // two for each of 132 multiprocessors
  if (!keep)
    launch(fp8_zero_kernel, grid_of(blocks_for(amax.numel(), kThreads)), kThreads, 0,
           amax.data<float>(), amax.numel());
  const std::int64_t cols = x.dim(1);
  const bool one = amax.numel() == 1;
  int* const out = reinterpret_cast<int*>(amax.data<float>());
  dispatch_input(x, [&]<class T>() {
    constexpr int V = 16 / static_cast<int>(sizeof(T));
    const T* const px = x.data<T>();
    each_part(all, [&](const Groups& g, std::int64_t rows) {
      const auto grid = [&](int v) {
        const std::int64_t blocks = blocks_for(rows * cols, std::int64_t{kThreads} * v);
        return grid_of(std::min(blocks, kBlocks), g.count);
      };
      if (four_at_once(px, cols, V))
        launch(fp8_amax_kernel<T, V>, grid(V), kThreads, 0, g, cols, one, px, out);
      else
        launch(fp8_amax_kernel<T, 1>, grid(1), kThreads, 0, g, cols, one, px, out);
    });
  });
}

void fp8_scale(const Tensor& amax, float largest, const Fp8Scaling& how, const Tensor& scale,
               const Tensor& inverse) {
  launch(fp8_scale_kernel, grid_of(blocks_for(amax.numel(), kThreads)), kThreads, 0, amax.numel(),
         amax.data<float>(), largest, how, scale.data<float>(), inverse.data<float>());
}

void quantize(const Tensor& x, const RowGroups& all, const Tensor& scale, const Tensor& out,
              const Tensor& transposed) {
  const std::int64_t cols = x.dim(1);
  const bool one = scale.defined() && scale.numel() == 1;
  const float* const s = data_or_null<float>(scale);
  std::uint8_t *const rows_out = codes_of(out), *const columns_out = codes_of(transposed);
  dispatch_code((out.defined() ? out : transposed).dtype(), [&]<class Q>() {
    const auto with_columns = [&]<class T>(const T* px, const Groups& g, std::int64_t rows) {
      const bool whole = four_at_once(px, cols, 4) && four_at_once(rows_out, cols, 4) &&
                         four_at_once(columns_out, 4, 4);
      launch(quantize_transposed_kernel<Q, T>,
             grid_of(blocks_for(rows, kTile) * blocks_for(cols, kTile), g.count), kThreads, 0, g,
             cols, one, whole, px, s, rows_out, columns_out);
    };
    if (!s)
      return each_part(
          all, [&](const Groups& g, std::int64_t rows) { with_columns(x.data<Q>(), g, rows); });
    dispatch_input(x, [&]<class T>() {
      const T* const px = x.data<T>();
      each_part(all, [&](const Groups& g, std::int64_t rows) {
        if (columns_out) return with_columns(px, g, rows);
        constexpr int V = 16 / static_cast<int>(sizeof(T));
        const auto grid = [&](int v) {
          return grid_of(blocks_for(rows * cols, std::int64_t{kThreads} * v), g.count);
        };
        if (four_at_once(px, cols, V) && four_at_once(rows_out, cols, V))
          launch(quantize_kernel<Q, T, V>, grid(V), kThreads, 0, g, cols, one, px, s, rows_out);
        else
          launch(quantize_kernel<Q, T, 1>, grid(1), kThreads, 0, g, cols, one, px, s, rows_out);
      });
    });
  });
}

void fp8_roll(const Fp8Delayed& state, const Fp8Limits& limits, const Fp8Scaling& how) {
  launch(fp8_roll_kernel, 3, kThreads, 0, state.history.dim(0), limits, how,
         state.history.data<float>(), state.scale.data<float>());
}

void fp8_take(const Fp8Delayed& state, std::int64_t slot, const Tensor& scale,
              const Tensor& inverse) {
  launch(fp8_take_kernel, 1, 1, 0, state.scale.data<float>() + slot, scale.data<float>(),
         inverse.data<float>());
}

}  // namespace weft::cuda
