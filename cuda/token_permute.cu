// Sorts slots by expert without comparisons: each warp counts its chunk of slots, the counts become
// start positions, and the warps place their slots in the order in which they counted them.
#include "weft/core/kernels/token_permute.h"
#include "weft/cuda/math.h"
#include "weft/cuda/reduce.h"

namespace weft::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSortThreads = 128;
constexpr int kSortWarps = kSortThreads / kWarp;

/// Calls f(slot, expert, place) for the slots of a chunk that have an expert; place is the number
/// of earlier slots of this chunk with the same expert. `seen` has one entry per expert, initially
/// zero, and holds the counts afterwards. All lanes of a warp must call it.
template <class I, class F>
__device__ inline void each_slot(const I* experts, std::int64_t begin, std::int64_t slots,
                                 std::int64_t count, int* seen, F f) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int step = 0; step < kSortChunk / kWarp; ++step) {
    const std::int64_t i = begin + step * kWarp + lane;
    std::int64_t e = i < slots ? static_cast<std::int64_t>(experts[i]) : -1;
    if (e < 0 || e >= count) e = -1;
    const unsigned same = __match_any_sync(kAllLanes, static_cast<int>(e));
    const int before = __popc(same & ((1u << lane) - 1));
    if (e >= 0) f(i, e, seen[e] + before);
    __syncwarp();
    if (e >= 0 && before == 0) seen[e] += __popc(same);
    __syncwarp();
  }
}

__device__ inline int* counters_of_warp(std::int64_t count) {
  int* seen = dynamic_shared<int>() + threadIdx.x / kWarp * count;
  for (std::int64_t e = threadIdx.x % kWarp; e < count; e += kWarp) seen[e] = 0;
  __syncwarp();
  return seen;
}

template <class I>
__global__ void __launch_bounds__(kSortThreads)
    token_permute_count_kernel(const I* experts, std::int64_t slots, std::int64_t chunks,
                               std::int64_t count, std::int64_t* counts) {
  const std::int64_t chunk = std::int64_t{blockIdx.x} * kSortWarps + threadIdx.x / kWarp;
  int* seen = counters_of_warp(count);
  each_slot(experts, chunk * kSortChunk, slots, count, seen,
            [](std::int64_t, std::int64_t, std::int64_t) {});
  if (chunk < chunks)
    for (std::int64_t e = threadIdx.x % kWarp; e < count; e += kWarp)
      counts[e * chunks + chunk] = seen[e];
}

// Exclusive prefix sum over the threads of the block; `total` receives the sum of all.
template <int Threads, class T>
__device__ inline T block_scan(T v, T* shared, T& total) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  T sum = v;
  for (int step = 1; step < kWarp; step *= 2) {
    const T left = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += left;
  }
  if (lane == kWarp - 1) shared[warp] = sum;
  __syncthreads();
  T before = 0;
  total = 0;
  for (int w = 0; w < Threads / kWarp; ++w) {
    if (w < warp) before += shared[w];
    total += shared[w];
  }
  __syncthreads();
  return before + sum - v;
}

// One block per expert: replaces the counts of its chunks by start positions and writes its number
// of slots.
__global__ void __launch_bounds__(kThreads)
    token_permute_chunks_kernel(std::int64_t chunks, std::int64_t* counts, std::int64_t* rows) {
  WEFT_SHARED(shared, std::int64_t[kThreads / kWarp]);
  std::int64_t* const own = counts + std::int64_t{blockIdx.x} * chunks;
  std::int64_t before = 0;
  for (std::int64_t begin = 0; begin < chunks; begin += kThreads) {
    const std::int64_t i = begin + threadIdx.x;
    const std::int64_t n = i < chunks ? own[i] : 0;
    std::int64_t total = 0;
    const std::int64_t place = block_scan<kThreads>(n, shared, total);
    if (i < chunks) own[i] = before + place;
    before += total;
  }
  if (threadIdx.x == 0) rows[blockIdx.x] = before;
}

// One block: converts the slot counts of each expert to row counts; `first` receives their start.
__global__ void __launch_bounds__(kThreads)
    token_permute_first_kernel(RowLayout layout, std::int64_t* rows, std::int64_t* first) {
  WEFT_SHARED(shared, std::int64_t[kThreads / kWarp]);
  std::int64_t before = 0;
  for (std::int64_t begin = 0; begin < layout.experts; begin += kThreads) {
    const std::int64_t e = begin + threadIdx.x;
    const std::int64_t n = e < layout.experts ? padded_rows(rows[e], layout) : 0;
    std::int64_t total = 0;
    const std::int64_t place = block_scan<kThreads>(n, shared, total);
    if (e < layout.experts) {
      rows[e] = n;
      first[e] = before + place;
    }
    before += total;
  }
}

template <class I>
__global__ void __launch_bounds__(kSortThreads)
    token_permute_place_kernel(const I* experts, std::int64_t slots, std::int64_t chunks,
                               RowLayout layout, const std::int64_t* places,
                               const std::int64_t* first, std::int64_t* row_of,
                               std::int64_t* slot_of) {
  const std::int64_t chunk = std::int64_t{blockIdx.x} * kSortWarps + threadIdx.x / kWarp;
  int* seen = counters_of_warp(layout.experts);
  each_slot(experts, chunk * kSortChunk, slots, layout.experts, seen,
            [=](std::int64_t slot, std::int64_t e, std::int64_t place) {
              const std::int64_t at = places[e * chunks + chunk] + place;
              if (layout.capacity && at >= layout.capacity) return;
              row_of[slot] = first[e] + at;
              slot_of[first[e] + at] = slot;
            });
}

__global__ void __launch_bounds__(kThreads)
    token_permute_fill_kernel(std::int64_t* x, std::int64_t n, std::int64_t value) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) x[i] = value;
}

// One thread per row after the move, which looks up its chunk.
__global__ void __launch_bounds__(kThreads)
    token_permute_place_chunks_kernel(const std::int64_t* chunks, std::int64_t n, std::int64_t rows,
                                      std::int64_t* row_of, std::int64_t* slot_of) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows) return;
  std::int64_t own = 0;  // the last chunk that begins at row i or before
  for (std::int64_t end = n; own + 1 < end;) {
    const std::int64_t middle = (own + end) / 2;
    if (chunks[3 * middle + 1] <= i)
      own = middle;
    else
      end = middle;
  }
  const std::int64_t from = chunks[3 * own];
  const std::int64_t slot = from < 0 ? -1 : from + i - chunks[3 * own + 1];
  slot_of[i] = slot;
  if (slot >= 0) row_of[slot] = i;
}

/// Row and column of pack i for rows of `packs` packs.
struct Place {
  std::int64_t row, pack;
  __device__ Place(std::int64_t i, std::int64_t packs, bool in_32_bits) {
    row =
        in_32_bits ? static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(packs) : i / packs;
    pack = i - row * packs;
  }
};

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    token_permute_gather_kernel(const T* x, const std::int64_t* slot_of, std::int64_t k,
                                std::int64_t packs, std::int64_t total, bool in_32_bits, T* y) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= total) return;
  const Place at(i, packs, in_32_bits);
  const std::int64_t slot = slot_of[at.row];
  Pack<T, V> v{};
  if (slot >= 0) {
    const std::int64_t token =
        in_32_bits ? static_cast<std::uint32_t>(slot) / static_cast<std::uint32_t>(k) : slot / k;
    v = load_pack<T, V>(x + (token * packs + at.pack) * V);
  }
  store_pack(y + i * V, v);
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    token_permute_combine_kernel(const T* x, const std::int64_t* row_of, std::int64_t k,
                                 std::int64_t packs, std::int64_t total, bool in_32_bits, T* y) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= total) return;
  const Place at(i, packs, in_32_bits);
  Compute<T> sum[V] = {};
  for (std::int64_t j = 0; j < k; ++j) {
    const std::int64_t row = row_of[at.row * k + j];
    if (row < 0) continue;
    const auto v = load_pack<T, V>(x + (row * packs + at.pack) * V);
#pragma unroll
    for (int c = 0; c < V; ++c) sum[c] += static_cast<Compute<T>>(v[c]);
  }
  Pack<T, V> out;
#pragma unroll
  for (int c = 0; c < V; ++c) out[c] = narrow<T>(sum[c]);
  store_pack(y + i * V, out);
}

void fill(const Tensor& t, std::int64_t value) {
  launch(token_permute_fill_kernel, grid_of(blocks_for(t.numel(), kThreads)), kThreads, 0,
         t.data<std::int64_t>(), t.numel(), value);
}

/// Arguments of both row-moving kernels: writes the rows of y from the rows of x.
struct Move {
  std::int64_t width, rows, slots;

  template <class T, class F>
  void run(const T* x, const T* y, F f) const {
    constexpr int V = 16 / static_cast<int>(sizeof(T));
    const bool wide = packable(x, width) && packable(y, width);
    const std::int64_t packs = wide ? width / V : width, total = rows * packs;
    // 32-bit division where every number fits.
    const bool in_32_bits = total <= 0xffffffff && slots <= 0xffffffff;
    const dim3 grid = grid_of(blocks_for(total, kThreads));
    if (wide)
      f.template operator()<V>(grid, packs, total, in_32_bits);
    else
      f.template operator()<1>(grid, packs, total, in_32_bits);
  }
};

}  // namespace

void sort_by_expert(const Tensor& experts, const RowLayout& layout, const Tensor& scratch,
                    const Tensor& row_of, const Tensor& slot_of, const Tensor& rows) {
  const std::int64_t slots = experts.numel(), chunks = blocks_for(slots, kSortChunk);
  std::int64_t* counts = scratch.data<std::int64_t>();
  std::int64_t* first = counts + chunks * layout.experts;
  fill(row_of, -1);
  fill(slot_of, -1);
  const dim3 grid = grid_of(blocks_for(chunks, kSortWarps));
  const std::size_t shared = sizeof(int) * kSortWarps * static_cast<std::size_t>(layout.experts);
  dispatch_index(experts.dtype(), [&]<class I>() {
    launch(token_permute_count_kernel<I>, grid, kSortThreads, shared, experts.data<I>(), slots,
           chunks, layout.experts, counts);
    launch(token_permute_chunks_kernel, grid_of(layout.experts), kThreads, 0, chunks, counts,
           rows.data<std::int64_t>());
    launch(token_permute_first_kernel, 1, kThreads, 0, layout, rows.data<std::int64_t>(), first);
    launch(token_permute_place_kernel<I>, grid, kSortThreads, shared, experts.data<I>(), slots,
           chunks, layout, counts, first, row_of.data<std::int64_t>(),
           slot_of.data<std::int64_t>());
  });
}

void place_chunks(const Tensor& chunks, const Tensor& row_of, const Tensor& slot_of) {
  const std::int64_t rows = slot_of.numel();
  if (rows == 0) return;
  launch(token_permute_place_chunks_kernel, grid_of(blocks_for(rows, kThreads)), kThreads, 0,
         chunks.data<std::int64_t>(), chunks.dim(0), rows, row_of.data<std::int64_t>(),
         slot_of.data<std::int64_t>());
}

void permute_tokens(const Tensor& x, const Tensor& slot_of, std::int64_t k, const Tensor& y) {
  if (y.numel() == 0) return;
  const Move move{y.dim(1), y.dim(0), x.dim(0) * k};
  const auto gather = [&]<class T>() {
    const T* from = x.data<T>();
    T* to = y.data<T>();
    move.run(from, to,
             [&]<int V>(dim3 grid, std::int64_t packs, std::int64_t total, bool in_32_bits) {
               launch(token_permute_gather_kernel<T, V>, grid, kThreads, 0, from,
                      slot_of.data<std::int64_t>(), k, packs, total, in_32_bits, to);
             });
  };
  y.dtype() == DType::e4m3 ? gather.operator()<e4m3>() : dispatch_floating(y.dtype(), gather);
}

void combine_tokens(const Tensor& x, const Tensor& row_of, const Tensor& y) {
  if (y.numel() == 0) return;
  const Move move{y.dim(1), y.dim(0), row_of.numel()};
  dispatch_floating(y.dtype(), [&]<class T>() {
    const T* from = x.data<T>();
    T* to = y.data<T>();
    move.run(from, to,
             [&]<int V>(dim3 grid, std::int64_t packs, std::int64_t total, bool in_32_bits) {
               launch(token_permute_combine_kernel<T, V>, grid, kThreads, 0, from,
                      row_of.data<std::int64_t>(), row_of.dim(1), packs, total, in_32_bits, to);
             });
  });
}

}  // namespace weft::cuda
