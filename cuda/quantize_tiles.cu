// FP8 with a scale for each block of numbers, and codes back to numbers. Divisions of 64 bits are
// per thread, not per element, and the host counts the blocks of the groups before.
#include "weft/cuda/row_groups.h"

namespace weft::cuda {

using namespace fp8_groups;

namespace {

constexpr int kPack = 4;
constexpr int kWarps = kThreads / kWarp;
constexpr std::int64_t kStripRows = 32;  // rows of a block of threads that only multiplies

struct TiledGroups : Groups {
  std::int64_t first_tile[kMost];  // of a group, along the rows
};

template <class F>
void each_tiled_part(const RowGroups& all, std::int64_t tile_rows, F f) {
  std::int64_t tile = 0;
  each_part(all, [&](const Groups& g, std::int64_t rows) {
    TiledGroups t{g, {}};
    for (int i = 0; i < g.count; ++i) {
      t.first_tile[i] = tile;
      tile += blocks_for(g.first_row[i + 1] - g.first_row[i], tile_rows);
    }
    f(t, rows);
  });
}

// The numbers of a group from one row on, in a strip of columns.
struct Area {
  std::int64_t corner;  // in the matrix
  std::int64_t left;
  unsigned down;  // its number along the rows of the group
  unsigned rows;  // 0 past the end

  // `place`: which strip of the group, rows of `height` before columns.
  __device__ Area(const TiledGroups& g, std::int64_t cols, unsigned place, unsigned strips,
                  std::int64_t height, std::int64_t width) {
    const int e = static_cast<int>(blockIdx.y);
    down = place / strips;
    const std::int64_t top = std::int64_t{down} * height;
    const std::int64_t all = g.first_row[e + 1] - g.first_row[e];
    left = std::int64_t{place - down * strips} * width;
    corner = (g.first_row[e] + top) * cols + left;
    rows = top < all ? static_cast<unsigned>(all - top < height ? all - top : height) : 0;
  }
};

template <class T, int V>
__device__ inline int largest_of(const Pack<T, V>& v, int most) {
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const int m = magnitude(widen(v[j]));
    most = m > most ? m : most;
  }
  return most;
}

// `Team` threads for each block of numbers. A block of one pack per thread is read once.
template <int Team, int V, class Q, class T>
__global__ void __launch_bounds__(kThreads)
    quantize_tiles_kernel(TiledGroups groups, std::int64_t cols, Fp8Tile tile, unsigned across,
                          Fp8Scaling how, float largest, const T* x, std::uint8_t* out,
                          float* inverse) {
  WEFT_SHARED(shared, int[kThreads / kWarp]);
  const unsigned place = blockIdx.x * (kThreads / Team) + threadIdx.x / Team;
  const Area area(groups, cols, place, across, tile.rows, tile.columns);
  if (area.rows == 0) return;
  const std::int64_t wide = cols - area.left < tile.columns ? cols - area.left : tile.columns;
  const unsigned packs = static_cast<unsigned>(wide) / V, all = area.rows * packs;
  const unsigned thread = threadIdx.x % Team;
  const auto place_of = [&](unsigned i) {
    const unsigned r = i / packs;
    return area.corner + r * cols + (i - r * packs) * V;
  };
  Pack<T, V> first{};
  if (thread < all) first = load_pack<T, V>(x + place_of(thread));
  int most = largest_of(first, 0);
  for (unsigned i = thread + Team; i < all; i += Team)
    most = largest_of(load_pack<T, V>(x + place_of(i)), most);
  most = block_reduce<Team>(most, shared, 0, Max{});
  const float scale = fp8_scale_of(fp8_bits<float>(most), largest, how);
  const auto store = [&](unsigned i, const Pack<T, V>& v) {
    Pack<std::uint8_t, V> codes;
#pragma unroll
    for (int j = 0; j < V; ++j) codes[j] = fp8_code<Q>(widen(v[j]) * scale);
    store_pack(out + place_of(i), codes);
  };
  if (thread < all) store(thread, first);
  for (unsigned i = thread + Team; i < all; i += Team) store(i, load_pack<T, V>(x + place_of(i)));
  if (thread == 0)
    inverse[(groups.first_tile[blockIdx.y] + area.down) * across + place % across] = 1.0f / scale;
}

// Blocks of one column: a block of threads takes kWarp * V of them side by side.
template <int V, class Q, class T>
__global__ void __launch_bounds__(kThreads)
    quantize_columns_kernel(TiledGroups groups, std::int64_t cols, std::int64_t height,
                            unsigned strips, Fp8Scaling how, float largest, const T* x,
                            std::uint8_t* out, float* inverse) {
  WEFT_SHARED(most, int[kWarp * V]);
  const Area area(groups, cols, blockIdx.x, strips, height, kWarp * V);
  if (area.rows == 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const unsigned warp = threadIdx.x / kWarp;
  const std::int64_t column = area.left + lane * V;
  const std::int64_t at = area.corner + lane * V;
  if (threadIdx.x < kWarp * V) most[threadIdx.x] = 0;
  __syncthreads();
  int own[V] = {};
  if (column < cols)
    for (unsigned r = warp; r < area.rows; r += kWarps) {
      const auto v = load_pack<T, V>(x + at + r * cols);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const int m = magnitude(widen(v[j]));
        own[j] = m > own[j] ? m : own[j];
      }
    }
#pragma unroll
  for (int j = 0; j < V; ++j)
    if (own[j] > 0) atomicMax(&most[lane * V + j], own[j]);
  __syncthreads();
  if (column >= cols) return;
  Pack<float, V> scale, back;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    scale[j] = fp8_scale_of(fp8_bits<float>(most[lane * V + j]), largest, how);
    back[j] = 1.0f / scale[j];
  }
  for (unsigned r = warp; r < area.rows; r += kWarps) {
    const auto v = load_pack<T, V>(x + at + r * cols);
    Pack<std::uint8_t, V> codes;
#pragma unroll
    for (int j = 0; j < V; ++j) codes[j] = fp8_code<Q>(widen(v[j]) * scale[j]);
    store_pack(out + at + r * cols, codes);
  }
  if (warp == 0)
    store_pack(inverse + (groups.first_tile[blockIdx.y] + area.down) * cols + column, back);
}

// kStripRows rows of kWarp * V columns. A pack has one scale, or with blocks of one column V.
template <int V, class Q, class T>
__global__ void __launch_bounds__(kThreads)
    dequantize_tiles_kernel(TiledGroups groups, std::int64_t cols, Fp8Tile tile, unsigned strips,
                            std::int64_t across, const Q* q, const float* inverse, T* out) {
  const Area area(groups, cols, blockIdx.x, strips, kStripRows, kWarp * V);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t column = area.left + lane * V;
  if (column >= cols) return;
  const std::int64_t top = area.down * kStripRows, above = top / tile.rows;
  const auto below = static_cast<unsigned>(top - above * tile.rows);
  const float* const scales =
      inverse + (groups.first_tile[blockIdx.y] + above) * across + column / tile.columns;
  for (unsigned r = threadIdx.x / kWarp; r < area.rows; r += kWarps) {
    const float* const s = scales + (below + r) / static_cast<unsigned>(tile.rows) * across;
    Pack<float, V> factor;
    if (V > 1 && tile.columns == 1) {
      factor = load_pack<float, V>(s);
    } else {
#pragma unroll
      for (int j = 0; j < V; ++j) factor[j] = *s;
    }
    const auto v = load_pack<Q, V>(q + area.corner + lane * V + r * cols);
    Pack<T, V> y;
#pragma unroll
    for (int j = 0; j < V; ++j) y[j] = narrow<T>(static_cast<float>(v[j]) * factor[j]);
    store_pack(out + area.corner + lane * V + r * cols, y);
  }
}

// One scale for each group, or for all.
template <int V, class Q, class T>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(Groups groups, std::int64_t cols, bool one, const Q* q, const float* inverse,
                      T* out) {
  const int e = static_cast<int>(blockIdx.y);
  const std::int64_t i =
      groups.first_row[e] * cols + (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) * V;
  if (i >= groups.first_row[e + 1] * cols) return;
  const float factor = inverse[one ? 0 : groups.first + e];
  const auto v = load_pack<Q, V>(q + i);
  Pack<T, V> y;
#pragma unroll
  for (int j = 0; j < V; ++j) y[j] = narrow<T>(static_cast<float>(v[j]) * factor);
  store_pack(out + i, y);
}

// Whether packs fit into blocks of numbers with these columns.
bool packs_fit(const Fp8Tile& tile) { return tile.columns % kPack == 0; }

}  // namespace

void quantize_tiles(const Tensor& x, const RowGroups& all, const Fp8Tile& tile,
                    const Fp8Scaling& how, const Tensor& out, const Tensor& inverse) {
  const std::int64_t cols = x.dim(1), across = blocks_for(cols, tile.columns);
  const float largest = fp8_largest(out.dtype());
  float* const inv = inverse.data<float>();
  std::uint8_t* const to = codes_of(out);
  dispatch_code(out.dtype(), [&]<class Q>() {
    dispatch_input(x, [&]<class T>() {
      const T* const px = x.data<T>();
      const bool whole = four_at_once(px, cols, kPack) && four_at_once(to, cols, kPack);
      each_tiled_part(all, tile.rows, [&](const TiledGroups& g, std::int64_t rows) {
        const std::int64_t down = blocks_for(rows, tile.rows);
        const auto by_columns = [&]<int V>() {
          const std::int64_t strips = blocks_for(cols, kWarp * V);
          launch(quantize_columns_kernel<V, Q, T>, grid_of(down * strips, g.count), kThreads, 0, g,
                 cols, tile.rows, static_cast<unsigned>(strips), how, largest, px, to, inv);
        };
        const auto by_teams = [&]<int Team, int V>() {
          launch(quantize_tiles_kernel<Team, V, Q, T>,
                 grid_of(blocks_for(down * across, kThreads / Team), g.count), kThreads, 0, g, cols,
                 tile, static_cast<unsigned>(across), how, largest, px, to, inv);
        };
        const bool columns_whole = whole && four_at_once(inv, cols, kPack);
        if (tile.columns == 1)
          columns_whole ? by_columns.template operator()<kPack>()
                        : by_columns.template operator()<1>();
        else if (!whole || !packs_fit(tile))
          by_teams.template operator()<kThreads, 1>();
        else if (tile.rows * tile.columns <= 4 * kWarp * kPack)
          by_teams.template operator()<kWarp, kPack>();
        else
          by_teams.template operator()<kThreads, kPack>();
      });
    });
  });
}

void dequantize(const Tensor& q, const RowGroups& all, const Fp8Tile& tile, const Tensor& inverse,
                const Tensor& out) {
  const std::int64_t cols = q.dim(1);
  const float* const inv = inverse.data<float>();
  dispatch_code(q.dtype(), [&]<class Q>() {
    dispatch_input(out, [&]<class T>() {
      const Q* const from = q.data<Q>();
      T* const to = out.data<T>();
      const bool whole = four_at_once(from, cols, kPack) && four_at_once(to, cols, kPack);
      const auto by_groups = [&]<int V>() {
        each_part(all, [&](const Groups& g, std::int64_t rows) {
          launch(dequantize_kernel<V, Q, T>,
                 grid_of(blocks_for(rows * cols, std::int64_t{kThreads} * V), g.count), kThreads, 0,
                 g, cols, inverse.numel() == 1, from, inv, to);
        });
      };
      const auto by_tiles = [&]<int V>() {
        const std::int64_t strips = blocks_for(cols, kWarp * V);
        each_tiled_part(all, tile.rows, [&](const TiledGroups& g, std::int64_t rows) {
          launch(dequantize_tiles_kernel<V, Q, T>,
                 grid_of(blocks_for(rows, kStripRows) * strips, g.count), kThreads, 0, g, cols,
                 tile, static_cast<unsigned>(strips), blocks_for(cols, tile.columns), from, inv,
                 to);
        });
      };
      if (tile.rows == 0)
        whole ? by_groups.template operator()<kPack>() : by_groups.template operator()<1>();
      else if (whole && (packs_fit(tile) || (tile.columns == 1 && four_at_once(inv, cols, kPack))))
        by_tiles.template operator()<kPack>();
      else
        by_tiles.template operator()<1>();
    });
  });
}

}  // namespace weft::cuda
