// index_add, which is also the backward of an embedding. A stable sort of the indices makes rows
// with the same target adjacent; one warp then sums each run in order. No result depends on the
// order of threads.
#include "weft/core/kernels/indexing.h"
#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {
namespace {

using Number = std::uint32_t;

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kTile = static_cast<int>(kIndexTile), kPerWarp = kTile / kWarps;
constexpr int kDigits = static_cast<int>(kIndexDigits), kDigitBits = 8;
static_assert(kDigits == 1 << kDigitBits && kDigits == kThreads, "a thread a digit");

// An index out of range becomes `limit`, which receives no rows.
template <class I>
__global__ void __launch_bounds__(kThreads)
    index_add_keys_kernel(std::int64_t n, std::int64_t limit, const I* index, Number* keys,
                          Number* order) {
  const std::int64_t j = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (j >= n) return;
  const auto id = static_cast<std::int64_t>(index[j]);
  keys[j] = static_cast<Number>(id < 0 || id >= limit ? limit : id);
  order[j] = static_cast<Number>(j);
}

__device__ inline int digit_of(Number key, int shift) {
  return static_cast<int>(key >> shift) & (kDigits - 1);
}

// counts[digit][tile]: number of keys of the tile with the digit.
__global__ void __launch_bounds__(kThreads)
    index_add_count_kernel(std::int64_t n, int shift, const Number* keys, Number* counts) {
  WEFT_SHARED(count, Number[kDigits]);
  const int t = static_cast<int>(threadIdx.x);
  count[t] = 0;
  __syncthreads();
  const std::int64_t tile = blockIdx.x;
  for (int k = t; k < kTile; k += kThreads)
    if (const std::int64_t j = tile * kTile + k; j < n)
      atomicAdd(&count[digit_of(keys[j], shift)], 1u);
  __syncthreads();
  counts[std::int64_t{t} * gridDim.x + tile] = count[t];
}

constexpr int kScanThreads = 1024;

// Replaces the n counts by their exclusive prefix sums. One block.
__global__ void __launch_bounds__(kScanThreads)
    index_add_scan_kernel(std::int64_t n, Number* counts) {
  WEFT_SHARED(sums, Number[kWarp]);
  const int t = static_cast<int>(threadIdx.x), lane = t % kWarp, warp = t / kWarp;
  const std::int64_t begin = n * t / kScanThreads, end = n * (t + 1) / kScanThreads;
  Number mine = 0;
  for (std::int64_t i = begin; i < end; ++i) mine += counts[i];
  // Inclusive scan: first within the warp, then over the warps.
  const auto scan = [lane](Number v) {
    for (int step = 1; step < kWarp; step *= 2) {
      const Number before = __shfl_up_sync(kAllLanes, v, step);
      if (lane >= step) v += before;
    }
    return v;
  };
  const Number in_warp = scan(mine);
  if (lane == kWarp - 1) sums[warp] = in_warp;
  __syncthreads();
  if (warp == 0) {
    const Number whole = scan(sums[lane]);
    __syncwarp();
    sums[lane] = whole;
  }
  __syncthreads();
  Number before = in_warp - mine + (warp > 0 ? sums[warp - 1] : 0);
  for (std::int64_t i = begin; i < end; ++i) {
    const Number count = counts[i];
    counts[i] = before;
    before += count;
  }
}

// Moves each key to the position given by the scanned counts. Equal digits keep their order, since
// each warp processes its part of the tile in order, 32 keys at a time.
__global__ void __launch_bounds__(kThreads)
    index_add_sort_kernel(std::int64_t n, int shift, const Number* keys, const Number* order,
                          const Number* counts, Number* new_keys, Number* new_order) {
  WEFT_SHARED(next, Number[kWarps][kDigits]);
  const int t = static_cast<int>(threadIdx.x), lane = t % kWarp, warp = t / kWarp;
  const std::int64_t tile = blockIdx.x, first = tile * kTile + warp * kPerWarp;
  for (int w = 0; w < kWarps; ++w) next[w][t] = 0;
  __syncthreads();
  for (int k = lane; k < kPerWarp; k += kWarp)
    if (const std::int64_t j = first + k; j < n)
      atomicAdd(&next[warp][digit_of(keys[j], shift)], 1u);
  __syncthreads();
  Number at = counts[std::int64_t{t} * gridDim.x + tile];
  for (int w = 0; w < kWarps; ++w) {
    const Number count = next[w][t];
    next[w][t] = at;
    at += count;
  }
  __syncthreads();
  for (int k = 0; k < kPerWarp; k += kWarp) {
    const std::int64_t j = first + k + lane;
    const bool live = j < n;
    const Number key = live ? keys[j] : 0;
    const int digit = live ? digit_of(key, shift) : kDigits;
    const unsigned alike = __match_any_sync(kAllLanes, digit);
    const int rank = __popc(alike & ((1u << lane) - 1));
    const Number base = live ? next[warp][digit] : 0;
    __syncwarp();
    if (live) {
      if (rank == 0) next[warp][digit] = base + static_cast<Number>(__popc(alike));
      new_keys[base + rank] = key;
      new_order[base + rank] = order[j];
    }
    __syncwarp();
  }
}

/// The columns of source (outer, n, inner) and out (outer, length, inner), V elements each.
struct Columns {
  std::int64_t count, inner;  // in packs
};

// Row loads in flight: a frequent index has a long run. With 16, sums of f16 in f32 spill.
template <class T, class O>
constexpr int kRowLoads = std::is_same_v<T, f16> && !std::is_same_v<T, O> ? 8 : 16;

// Warp (position, tile of 32 columns): if a run of equal keys begins at the position, the warp sums
// the rows of the run.
template <class T, class O, int V>
__global__ void __launch_bounds__(kThreads)
    index_add_rows_kernel(std::int64_t n, std::int64_t length, Columns c, const Number* keys,
                          const Number* order, const T* source, O* out) {
  using A = Compute<T>;
  constexpr int kLoads = kRowLoads<T, O>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t tiles = (c.count + kWarp - 1) / kWarp;
  const std::int64_t warp = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  const std::int64_t position = warp / tiles;
  if (position >= n) return;
  const Number key = keys[position];
  if (key >= length || (position > 0 && keys[position - 1] == key)) return;

  const std::int64_t column = warp % tiles * kWarp + lane;
  const bool live = column < c.count;
  const std::int64_t o = column / c.inner, i = column % c.inner;
  const T* const from = source + (o * n * c.inner + i) * V;
  O* const to = out + ((o * length + key) * c.inner + i) * V;
  A sum[V] = {};
  if (live) {
    const auto old = load_pack<O, V>(to);
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] = static_cast<A>(widen(old[v]));
  }
  for (std::int64_t q = position;; q += kWarp) {
    const bool same = q + lane < n && keys[q + lane] == key;
    const Number mine = same ? order[q + lane] : 0;
    const int rows = __popc(__ballot_sync(kAllLanes, same));
    for (int first = 0; first < rows; first += kLoads) {
      Pack<T, V> x[kLoads];
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const std::int64_t j = __shfl_sync(kAllLanes, mine, (first + k) % kWarp);
        if (live && first + k < rows) x[k] = load_pack<T, V>(from + j * c.inner * V);
      }
#pragma unroll
      for (int k = 0; k < kLoads; ++k)
        if (live && first + k < rows)
#pragma unroll
          for (int v = 0; v < V; ++v)
            sum[v] = static_cast<A>(sum[v] + static_cast<A>(widen(x[k][v])));
    }
    if (rows < kWarp) break;
  }
  if (!live) return;
  Pack<O, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) result[v] = narrow<O>(sum[v]);
  store_pack(to, result);
}

template <class T, class O, int V>
void add_rows(std::int64_t n, std::int64_t length, const Columns& c, const Number* keys,
              const Number* order, const T* source, O* out) {
  const std::int64_t warps = n * blocks_for(c.count, kWarp);
  launch(index_add_rows_kernel<T, O, V>, grid_of(blocks_for(warps, kWarps)), kThreads, 0, n, length,
         c, keys, order, source, out);
}

}  // namespace

void index_add(const Tensor& source, const Tensor& index, int dim, const Tensor& scratch,
               const Tensor& out) {
  if (source.numel() == 0) return;
  const AxisExtent to_axis(out, dim);
  const std::int64_t n = index.numel(), length = to_axis.length, inner = to_axis.inner;

  auto* keys = reinterpret_cast<Number*>(scratch.data<std::int32_t>());
  Number *order = keys + n, *next_keys = order + n, *next_order = next_keys + n;
  Number* const counts = next_order + n;
  const dim3 blocks = grid_of(blocks_for(n, kThreads)), tiles = grid_of(blocks_for(n, kTile));
  dispatch_index(index.dtype(), [&]<class I>() {
    launch(index_add_keys_kernel<I>, blocks, kThreads, 0, n, length, index.data<I>(), keys, order);
  });
  for (int shift = 0; length >> shift > 0; shift += kDigitBits) {
    launch(index_add_count_kernel, tiles, kThreads, 0, n, shift, keys, counts);
    launch(index_add_scan_kernel, 1, kScanThreads, 0, kIndexDigits * tiles.x, counts);
    launch(index_add_sort_kernel, tiles, kThreads, 0, n, shift, keys, order, counts, next_keys,
           next_order);
    std::swap(keys, next_keys);
    std::swap(order, next_order);
  }
  const auto add = [&]<class T, class O>() {
    constexpr int kWidest = static_cast<int>(std::max(sizeof(T), sizeof(O)));
    constexpr int V = kWidest == 1 ? 1 : 16 / kWidest;
    const T* from = source.data<T>();
    O* to = out.data<O>();
    if (packable(from, inner) && packable(to, inner))
      add_rows<T, O, V>(n, length, {to_axis.outer * inner / V, inner / V}, keys, order, from, to);
    else
      add_rows<T, O, 1>(n, length, {to_axis.outer * inner, inner}, keys, order, from, to);
  };
  if (source.dtype() == DType::bf16 && out.dtype() == DType::f32)
    return add.template operator()<bf16, float>();
  if (source.dtype() == DType::f16 && out.dtype() == DType::f32)
    return add.template operator()<f16, float>();
  dispatch_numeric(out.dtype(), [&]<class T>() { add.template operator()<T, T>(); });
}

}  // namespace weft::cuda
