#include "weft/cuda/attention_dropout.h"

namespace weft::cuda {
namespace {

template <int D>
struct Queries {
  static constexpr int kColumns = 64;
  static constexpr std::size_t kShared =
      sizeof(std::uint16_t) * D * (2 * kRowsOfTile + 4 * kColumns);
};

template <class T, int D, bool Dropout>
__global__ void __launch_bounds__(kTileThreads, 2)
    attention_dq_kernel(AttentionArgs a, const T* q, const T* k, const T* v, const T* dy,
                        const float* scratch, T* dq) {
  constexpr int kColumns = Queries<D>::kColumns;
  T* const query_tile = dynamic_shared<T>();
  T* const grad_tile = query_tile + kRowsOfTile * D;
  T* const key_tiles = grad_tile + kRowsOfTile * D;  // key, value, key, value
  WEFT_SHARED(seen, Range[kRowsOfTile]);
  const int tiles = (a.queries + kRowsOfTile - 1) / kRowsOfTile;
  const TileOfHead at(tiles, a.heads);
  const int first = (tiles - 1 - at.tile) * kRowsOfTile, n = least(kRowsOfTile, a.queries - first);
  const int mine = warp_id() * 16, lane_row = mine + lane_id() / 4;
  const std::int64_t query = std::int64_t{at.batch} * a.queries + first;
  const std::int64_t out = (query * a.heads + at.head) * D, distance = std::int64_t{a.heads} * D;
  const Range top_row = a.keys_of(first), last_row = a.keys_of(first + n - 1);
  const int begin = top_row.begin, end = last_row.end;
  for (int i = static_cast<int>(threadIdx.x); i < kRowsOfTile; i += kTileThreads)
    seen[i] = i < n ? a.keys_of(first + i) : Range{0, 0};
  const auto start_copy = [&](int from, int stage) {
    const std::int64_t token = std::int64_t{at.batch} * a.keys + from;
    const int head = at.head / a.share() * D, count = least(kColumns, end - from);
    T* const tile = key_tiles + stage * 2 * kColumns * D;
    copy_tokens<kColumns, D>(tile, k + token * a.ldk + head, a.ldk, count);
    copy_tokens<kColumns, D>(tile + kColumns * D, v + token * a.ldv + head, a.ldv, count);
    cp_async_commit();
  };
  copy_tokens<kRowsOfTile, D>(query_tile, q + query * a.ldq + at.head * D, a.ldq, n);
  copy_tokens<kRowsOfTile, D>(grad_tile, dy + out, distance, n);
  cp_async_commit();  // a group of its own: without a visible key no tile's copy would commit it
  if (begin < end) start_copy(begin, 0);

  const float unit = static_cast<float>(a.scale) * kLog2E;
  const float* const pairs = row_pairs(scratch, a, at.batch, at.head) + 2 * (first + lane_row);
  const float level[2] = {pairs[0], pairs[16]}, delta[2] = {pairs[1], pairs[17]};
  Rows<T, D> queries, grads;
  float sum[1][D / 8][4] = {};

  for (int from = begin, stage = 0; from < end; from += kColumns, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // the tile has arrived, and all threads are done with the previous one
    if (from == begin) {
      queries.load(query_tile, mine);
      grads.load(grad_tile, mine);
    }
    if (from + kColumns < end) start_copy(from + kColumns, stage ^ 1);
    const T* const keys = key_tiles + stage * 2 * kColumns * D;
    float p[1][kColumns / 8][4], ds[1][kColumns / 8][4];
    dot_tile<1, kColumns, D>(p, queries, keys);
    each_element<1, kColumns>([&](int m, int i, int h, int e, int, int) {
      float& x = p[m][i][2 * h + e];
      x = exp2_approx(x * unit - level[h]);
    });
    if (from < last_row.begin || from + kColumns > top_row.end)
      each_element<1, kColumns>([&](int m, int i, int h, int e, int row, int column) {
        if (!seen[mine + row].contains(from + column)) p[m][i][2 * h + e] = 0;
      });
    dot_tile<1, kColumns, D>(ds, grads, keys + kColumns * D);
    std::uint32_t dropped = 0;
    if constexpr (Dropout)
      dropped = dropped_keys<kColumns>(a, at.batch, at.head, first + mine, from);
    each_element<1, kColumns>([&](int m, int i, int h, int e, int, int) {
      float& x = ds[m][i][2 * h + e];
      if constexpr (Dropout)
        x *= dropped >> (4 * i + 2 * h + e) & 1 ? 0.0f : static_cast<float>(a.kept);
      x = p[m][i][2 * h + e] * (x - delta[h]);
    });
    add_weighted_tile<1, kColumns, D>(sum, ds, keys);
  }

  each_element<1, D>([&](int m, int i, int h, int e, int, int) {
    sum[m][i][2 * h + e] *= static_cast<float>(a.scale);
  });
  cp_async_wait<0>();  // without a visible key the copy of the queries may still be running
  __syncthreads();
  const std::int64_t step = std::int64_t{a.dq_heads} * D;
  store_tokens<1, D>(sum, query_tile, mine, dq + (query * a.dq_heads + at.head) * D, step, n);
}

}  // namespace

void attention_dq(const AttentionArgs& a, const AttentionIn& in, const AttentionSpec& spec,
                  const Tensor& dy, const AttentionGrads& out) {
  dispatch_tiles(in.q.dtype(), spec, [&]<class T, int D, bool Dropout>() {
    launch(attention_dq_kernel<T, D, Dropout>,
           grid_of(blocks_for(spec.queries, kRowsOfTile) * spec.heads * spec.batch),
           dim3(kTileThreads), Queries<D>::kShared, a, in.q.data<T>(), in.k.data<T>(),
           in.v.data<T>(), dy.data<T>(), out.scratch.data<float>(), out.dq.data<T>());
  });
}

}  // namespace weft::cuda
