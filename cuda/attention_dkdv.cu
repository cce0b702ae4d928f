#include "weft/cuda/attention_dropout.h"

namespace weft::cuda {
namespace {

// Two sums of the width of a head leave few registers for the scores.
template <int D, bool Dropout>
struct Keys {
  static constexpr int kColumns = (D == 64 ? 64 : 32) / (Dropout ? 2 : 1);
  static constexpr std::size_t kShared =
      sizeof(std::uint16_t) * D * (2 * kRowsOfTile + 4 * kColumns) +
      sizeof(float) * 2 * 2 * kColumns;
  static_assert(kAttentionPad % kColumns == 0);
};

// Loops over the query heads that share the key head.
template <class T, int D, bool Dropout>
__global__ void __launch_bounds__(kTileThreads, 2)
    attention_dkdv_kernel(AttentionArgs a, const T* q, const T* k, const T* v, const T* dy,
                          const float* scratch, T* dk, T* dv) {
  constexpr int kColumns = Keys<D, Dropout>::kColumns;
  T* const key_tile = dynamic_shared<T>();
  T* const value_tile = key_tile + kRowsOfTile * D;
  T* const query_tiles = value_tile + kRowsOfTile * D;  // query, dy, query, dy
  float* const pair_tiles = reinterpret_cast<float*>(query_tiles + 4 * kColumns * D);
  WEFT_SHARED(seen, Range[kRowsOfTile]);
  const TileOfHead at((a.keys + kRowsOfTile - 1) / kRowsOfTile, a.kv_heads);
  const int first = at.tile * kRowsOfTile, n = least(kRowsOfTile, a.keys - first);
  const int mine = warp_id() * 16;
  const std::int64_t token = std::int64_t{at.batch} * a.keys + first;
  const Range top_row = a.queries_of(first), last_row = a.queries_of(first + n - 1);
  // From a whole tile on, as the scratch has them.
  const int begin = top_row.begin / kColumns * kColumns, end = last_row.end;
  const int tiles = end <= top_row.begin ? 0 : (end - begin + kColumns - 1) / kColumns;
  for (int i = static_cast<int>(threadIdx.x); i < kRowsOfTile; i += kTileThreads)
    seen[i] = i < n ? a.queries_of(first + i) : Range{0, 0};
  const auto start_copy = [&](int head, int from, int stage) {
    const std::int64_t query = std::int64_t{at.batch} * a.queries + from;
    const std::int64_t distance = std::int64_t{a.heads} * D;
    const int count = least(kColumns, a.queries - from);
    T* const tile = query_tiles + stage * 2 * kColumns * D;
    copy_tokens<kColumns, D>(tile, q + query * a.ldq + head * D, a.ldq, count);
    copy_tokens<kColumns, D>(tile + kColumns * D, dy + query * distance + head * D, distance,
                             count);
    const int piece = static_cast<int>(threadIdx.x) * 4;  // 16 bytes of the pairs
    if (piece < 2 * kColumns)
      cp_async16(pair_tiles + stage * 2 * kColumns + piece,
                 row_pairs(scratch, a, at.batch, head) + 2 * from + piece);
    cp_async_commit();
  };
  copy_tokens<kRowsOfTile, D>(key_tile, k + token * a.ldk + at.head * D, a.ldk, n);
  copy_tokens<kRowsOfTile, D>(value_tile, v + token * a.ldv + at.head * D, a.ldv, n);
  cp_async_commit();  // a group of its own: without a tile of queries no copy would commit it
  int head = at.head * a.share(), from = begin;
  if (tiles > 0) start_copy(head, from, 0);

  const float unit = static_cast<float>(a.scale) * kLog2E;
  Rows<T, D> keys, values;
  if (tiles > 0) {
    cp_async_wait<1>();  // the keys have arrived; the copy of the first tile may still be running
    __syncthreads();
    keys.load(key_tile, mine);
    values.load(value_tile, mine);
  }
  float sum_k[1][D / 8][4] = {}, sum_v[1][D / 8][4] = {};

  for (int left = tiles * a.share(), stage = 0; left > 0; --left, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // the tile has arrived, and all threads are done with the previous one
    const bool turn = from + kColumns >= end;
    const int next_head = head + turn, next_from = turn ? begin : from + kColumns;
    if (left > 1) start_copy(next_head, next_from, stage ^ 1);
    const T* const queries = query_tiles + stage * 2 * kColumns * D;
    const T* const grads = queries + kColumns * D;
    // Of this lane's two queries in piece i.
    const auto pairs_of = [&](int i) {
      return load_pack<float, 4>(pair_tiles + stage * 2 * kColumns + 16 * i + lane_id() % 4 * 4);
    };
    float p[1][kColumns / 8][4], ds[1][kColumns / 8][4];
    dot_tile<1, kColumns, D>(p, keys, queries);
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      const Pack<float, 4> two = pairs_of(i);
      for (int h = 0; h < 2; ++h)
        for (int e = 0; e < 2; ++e) {
          float& x = p[0][i][2 * h + e];
          x = exp2_approx(x * unit - two[2 * e]);
        }
    }
    if (from < last_row.begin || from + kColumns > top_row.end)
      each_element<1, kColumns>([&](int m, int i, int h, int e, int row, int column) {
        if (!seen[mine + row].contains(from + column)) p[m][i][2 * h + e] = 0;
      });
    std::uint32_t dropped = 0;
    if constexpr (Dropout)
      dropped = dropped_queries<kColumns>(a, at.batch, head, from, first + mine);
    const auto factor = [&](int i, int h, int e) {
      return dropped >> (4 * i + 2 * h + e) & 1 ? 0.0f : static_cast<float>(a.kept);
    };
    if constexpr (Dropout) {
      float w[1][kColumns / 8][4];
      each_element<1, kColumns>([&](int m, int i, int h, int e, int, int) {
        w[m][i][2 * h + e] = p[m][i][2 * h + e] * factor(i, h, e);
      });
      add_weighted_tile<1, kColumns, D>(sum_v, w, grads);
    } else {
      add_weighted_tile<1, kColumns, D>(sum_v, p, grads);
    }
    dot_tile<1, kColumns, D>(ds, values, grads);
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      const Pack<float, 4> two = pairs_of(i);
      for (int h = 0; h < 2; ++h)
        for (int e = 0; e < 2; ++e) {
          float& x = ds[0][i][2 * h + e];
          if constexpr (Dropout) x *= factor(i, h, e);
          x = p[0][i][2 * h + e] * (x - two[2 * e + 1]);
        }
    }
    add_weighted_tile<1, kColumns, D>(sum_k, ds, queries);
    head = next_head;
    from = next_from;
  }

  each_element<1, D>([&](int m, int i, int h, int e, int, int) {
    sum_k[m][i][2 * h + e] *= static_cast<float>(a.scale);
  });
  cp_async_wait<0>();  // without a tile of queries the copy of the keys may still be running
  __syncthreads();
  const std::int64_t step = std::int64_t{a.dkv_heads} * D, out = token * step + at.head * D;
  store_tokens<1, D>(sum_k, key_tile, mine, dk + out, step, n);
  store_tokens<1, D>(sum_v, value_tile, mine, dv + out, step, n);
}

}  // namespace

void attention_dkdv(const AttentionArgs& a, const AttentionIn& in, const AttentionSpec& spec,
                    const Tensor& dy, const AttentionGrads& out) {
  dispatch_tiles(in.q.dtype(), spec, [&]<class T, int D, bool Dropout>() {
    launch(attention_dkdv_kernel<T, D, Dropout>,
           grid_of(blocks_for(spec.keys, kRowsOfTile) * spec.kv_heads * spec.batch),
           dim3(kTileThreads), Keys<D, Dropout>::kShared, a, in.q.data<T>(), in.k.data<T>(),
           in.v.data<T>(), dy.data<T>(), out.scratch.data<float>(), out.dk.data<T>(),
           out.dv.data<T>());
  });
}

}  // namespace weft::cuda
