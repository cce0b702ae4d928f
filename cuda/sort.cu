// Stable sorts of rows, and topk. Values become unsigned keys with the same order; ties go by
// position, so that every order of comparisons gives the same result.
#include <algorithm>
#include <bit>
#include <limits>

#include "weft/core/kernels/sort.h"
#include "weft/cuda/order_key.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kTile = 1024;  // elements sorted at once by a block

template <class K, class P>
__device__ inline bool before(K a, P place_a, K b, P place_b) {
  return a < b || (a == b && place_a < place_b);
}

/// Sorts each group of `width` (a power of two) neighbours of Count pairs in shared memory with a
/// bitonic network. All threads of the block must call it; it starts and ends with a barrier.
template <int Count, class K, class P>
__device__ inline void sort_groups(K* keys, P* places, int width) {
  for (int size = 2; size <= width; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int pair = static_cast<int>(threadIdx.x); pair < Count / 2; pair += kThreads) {
        const int i = 2 * pair - (pair & (stride - 1)), j = i + stride;
        const bool upward = (i & (width - 1) & size) == 0;
        if (before(keys[j], places[j], keys[i], places[i]) != upward) continue;
        const K key = keys[i];
        keys[i] = keys[j];
        keys[j] = key;
        const P place = places[i];
        places[i] = places[j];
        places[j] = place;
      }
    }
  __syncthreads();
}

// Sorts runs of `width` elements; several short rows share a block. Writes the first k of each row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sort_tile_kernel(const T* x, std::int64_t rows, std::int64_t n, std::int64_t k, int width,
                     bool descending, std::int64_t* order) {
  WEFT_SHARED(keys, Key<T>[kTile]);
  WEFT_SHARED(places, int[kTile]);
  const std::int64_t tiles = (n + width - 1) / width;
  for (int e = static_cast<int>(threadIdx.x); e < kTile; e += kThreads) {
    const std::int64_t run = std::int64_t{blockIdx.x} * (kTile / width) + e / width;
    const std::int64_t row = run / tiles, at = run % tiles * width + e % width;
    // Padding after the row comes last: by its key, or by its position.
    keys[e] = row < rows && at < n ? key_of(x[row * n + at], descending)
                                   : std::numeric_limits<Key<T>>::max();
    places[e] = e % width;
  }
  sort_groups<kTile>(keys, places, width);
  for (int e = static_cast<int>(threadIdx.x); e < kTile; e += kThreads) {
    const std::int64_t run = std::int64_t{blockIdx.x} * (kTile / width) + e / width;
    const std::int64_t row = run / tiles, first = run % tiles * width, at = first + e % width;
    if (row < rows && at < k) order[row * k + at] = first + places[e];
  }
}

// Merges adjacent runs of each row: the target of an element is its position in its own run plus
// the number of elements of the other run that precede it.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sort_merge_kernel(const T* x, std::int64_t rows, std::int64_t n, std::int64_t run,
                      bool descending, const std::int64_t* from, std::int64_t* to) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * n) return;
  const std::int64_t first = i / n * n, at = i - first;
  const std::int64_t left = at / (2 * run) * (2 * run);
  const std::int64_t middle = left + run < n ? left + run : n;
  const std::int64_t right = left + 2 * run < n ? left + 2 * run : n;
  const T* values = x + first;
  const std::int64_t mine = from[i];
  const Key<T> key = key_of(values[mine], descending);

  const bool on_left = at < middle;
  std::int64_t low = on_left ? middle : left, high = on_left ? right : middle;
  const std::int64_t begin = low;
  while (low < high) {
    const std::int64_t probe = low + (high - low) / 2, place = from[first + probe];
    if (before(key_of(values[place], descending), place, key, mine))
      low = probe + 1;
    else
      high = probe;
  }
  const std::int64_t own = on_left ? at : left + (at - middle);
  to[first + own + (low - begin)] = mine;
}

// One block per row. The best kMaxTopk so far stay in shared memory; candidates that beat the k-th
// are appended in any order until the buffer is full, and then all are sorted.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sort_topk_kernel(const T* x, std::int64_t n, std::int64_t k, std::int64_t* order) {
  using K = Key<T>;
  constexpr int kKept = static_cast<int>(kMaxTopk), kRound = 2 * kThreads;
  constexpr int kPlaces = 2048;
  constexpr K kLastKey = std::numeric_limits<K>::max();
  constexpr std::int64_t kLastPlace = std::numeric_limits<std::int64_t>::max();
  WEFT_SHARED(keys, K[kPlaces]);
  WEFT_SHARED(places, std::int64_t[kPlaces]);
  WEFT_SHARED(taken, int);
  const int thread = static_cast<int>(threadIdx.x);
  const T* values = x + std::int64_t{blockIdx.x} * n;
  for (int e = thread; e < kKept; e += kThreads) {
    keys[e] = kLastKey;
    places[e] = kLastPlace;
  }
  if (thread == 0) taken = kKept;
  __syncthreads();
  K bar = kLastKey;
  std::int64_t bar_place = kLastPlace;
  for (std::int64_t begin = 0; begin < n; begin += kRound) {
#pragma unroll
    for (int u = 0; u < kRound / kThreads; ++u) {
      const std::int64_t at = begin + u * kThreads + thread;
      if (at >= n) continue;
      const K key = key_of(values[at], true);
      if (!before(key, at, bar, bar_place)) continue;
      const int slot = atomicAdd(&taken, 1);
      keys[slot] = key;
      places[slot] = at;
    }
    __syncthreads();
    const int filled = taken;
    __syncthreads();
    if (filled + kRound <= kPlaces && begin + kRound < n) continue;
    for (int e = filled + thread; e < kPlaces; e += kThreads) {
      keys[e] = kLastKey;
      places[e] = kLastPlace;
    }
    if (thread == 0) taken = kKept;
    sort_groups<kPlaces>(keys, places, kPlaces);
    bar = keys[k - 1];
    bar_place = places[k - 1];
  }
  for (int e = thread; e < k; e += kThreads) order[blockIdx.x * k + e] = places[e];
}

template <class T>
void sort_tiles(const Tensor& x, std::int64_t k, bool descending, std::int64_t* order) {
  const std::int64_t n = x.dim(-1), rows = x.numel() / n;
  const int width =
      static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::min<std::int64_t>(n, kTile))));
  launch(sort_tile_kernel<T>, grid_of(blocks_for(rows * blocks_for(n, width), kTile / width)),
         kThreads, 0, x.data<T>(), rows, n, k, width, descending, order);
}

}  // namespace

void sort(const Tensor& x, bool descending, const Tensor& scratch, const Tensor& indices) {
  if (x.numel() == 0) return;
  const std::int64_t n = x.dim(-1), rows = x.numel() / n;
  std::int64_t *from = indices.data<std::int64_t>(), *to = scratch.data<std::int64_t>();
  // Choose the buffers so that the last merge writes to indices.
  for (std::int64_t run = kTile; run < n; run *= 2) std::swap(from, to);
  dispatch_numeric(x.dtype(), [&]<class T>() {
    sort_tiles<T>(x, n, descending, from);
    for (std::int64_t run = kTile; run < n; run *= 2) {
      launch(sort_merge_kernel<T>, grid_of(blocks_for(rows * n, kThreads)), kThreads, 0,
             x.data<T>(), rows, n, run, descending, from, to);
      std::swap(from, to);
    }
  });
}

void topk(const Tensor& x, const Tensor& indices) {
  if (x.numel() == 0) return;
  const std::int64_t n = x.dim(-1), rows = x.numel() / n, k = indices.dim(-1);
  std::int64_t* order = indices.data<std::int64_t>();
  dispatch_numeric(x.dtype(), [&]<class T>() {
    if (n <= kTile)
      sort_tiles<T>(x, k, true, order);
    else
      launch(sort_topk_kernel<T>, grid_of(rows), kThreads, 0, x.data<T>(), n, k, order);
  });
}

}  // namespace weft::cuda
