#include <algorithm>
#include <cmath>

#include "weft/core/error.h"
#include "weft/cuda/attention_dropout.h"

namespace weft::cuda {
namespace {

struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// A block has 64 M queries of one head and loops over the keys that they see, 32 or 64 at a time.
// The copy of the next tile of keys and values overlaps with the work on the present one.
template <class T, int D, bool Dropout>
struct Forward {
  // With two fragments of rows each fragment of keys is used twice. Wider heads and dropout leave
  // too few registers for it.
  static constexpr int M = D == 64 && !Dropout ? 2 : 1;
  static constexpr int kQueries = kTileWarps * 16 * M, kKeys = Dropout ? 32 : 64;
  using Queries = std::conditional_t<M == 1, RowFragments<T, M, D>, RowsInTile<T, D>>;
  static constexpr std::size_t kShared = sizeof(T) * D * (kQueries + 4 * kKeys);
};

template <class T, int D, bool Dropout>
__global__ void __launch_bounds__(kTileThreads, 2)
    attention_fwd_kernel(AttentionArgs a, const T* q, const T* k, const T* v, T* y, float* lse) {
  using Form = Forward<T, D, Dropout>;
  constexpr int M = Form::M, kQueries = Form::kQueries, kKeys = Form::kKeys;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  T* const query_tile = dynamic_shared<T>();
  T* const key_tiles = query_tile + kQueries * D;  // key, value, key, value
  WEFT_SHARED(seen, Range[kQueries]);
  const int tiles = (a.queries + kQueries - 1) / kQueries;
  const TileOfHead at(tiles, a.heads);
  // With a causal mask later tiles take longer: they start first, so that the last blocks are
  // short.
  const int first = (tiles - 1 - at.tile) * kQueries, n = least(kQueries, a.queries - first);
  const std::int64_t query = std::int64_t{at.batch} * a.queries + first;
  const Range top_row = a.keys_of(first), last_row = a.keys_of(first + n - 1);
  const int begin = top_row.begin, end = last_row.end, mine = warp_id() * 16 * M;
  for (int i = static_cast<int>(threadIdx.x); i < kQueries; i += kTileThreads)
    seen[i] = i < n ? a.keys_of(first + i) : Range{0, 0};
  const auto start_copy = [&](int from, int stage) {
    const std::int64_t token = std::int64_t{at.batch} * a.keys + from;
    const int head = at.head / a.share() * D, count = least(kKeys, end - from);
    T* const tile = key_tiles + stage * 2 * kKeys * D;
    copy_tokens<kKeys, D>(tile, k + token * a.ldk + head, a.ldk, count);
    copy_tokens<kKeys, D>(tile + kKeys * D, v + token * a.ldv + head, a.ldv, count);
    cp_async_commit();
  };
  copy_tokens<kQueries, D>(query_tile, q + query * a.ldq + at.head * D, a.ldq, n);
  cp_async_commit();  // a group of its own: without a visible key no tile's copy would commit it
  if (begin < end) start_copy(begin, 0);

  typename Form::Queries queries;
  float out[M][D / 8][4] = {}, high[M][2], sum[M][2];
  for (int m = 0; m < M; ++m)
    for (int h = 0; h < 2; ++h) high[m][h] = -kInf, sum[m][h] = 0;
  // The largest score so far and lse count in powers of 2; a score is multiplied by `unit` in the
  // instruction that subtracts the largest.
  const float unit = static_cast<float>(a.scale) * kLog2E;

  for (int from = begin, stage = 0; from < end; from += kKeys, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // the tile has arrived, and all threads are done with the previous one
    if (from == begin) queries.load(query_tile, mine);
    if (from + kKeys < end) start_copy(from + kKeys, stage ^ 1);
    const T* const keys = key_tiles + stage * 2 * kKeys * D;
    float x[M][kKeys / 8][4];
    dot_tile<M, kKeys, D>(x, queries, keys);
    if (from < last_row.begin || from + kKeys > top_row.end)
      each_element<M, kKeys>([&](int m, int i, int h, int e, int row, int column) {
        if (!seen[mine + row].contains(from + column)) x[m][i][2 * h + e] = -kInf;
      });
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float top = -kInf;
        for (int i = 0; i < kKeys / 8; ++i)
          top = fmaxf(top, fmaxf(x[m][i][2 * h], x[m][i][2 * h + 1]));
        top = warp_reduce<4>(top, Larger{});  // a row lies in four neighbouring lanes
        top = fmaxf(high[m][h], top * unit);
        const float shift = top == -kInf ? 0.0f : top;
        const float shrink = exp2_approx(high[m][h] - shift);
        high[m][h] = top;
        sum[m][h] *= shrink;  // of this lane's columns only
        for (int i = 0; i < kKeys / 8; ++i)
          for (int e = 0; e < 2; ++e) {
            float& p = x[m][i][2 * h + e];
            p = exp2_approx(p * unit - shift);
            sum[m][h] += p;
          }
        for (int i = 0; i < D / 8; ++i)
          for (int e = 0; e < 2; ++e) out[m][i][2 * h + e] *= shrink;
      }
    if constexpr (Dropout) {
      const std::uint32_t dropped = dropped_keys<kKeys>(a, at.batch, at.head, first + mine, from);
      each_element<M, kKeys>([&](int m, int i, int h, int e, int, int) {
        x[m][i][2 * h + e] *=
            dropped >> (4 * i + 2 * h + e) & 1 ? 0.0f : static_cast<float>(a.kept);
      });
    }
    add_weighted_tile<M, kKeys, D>(out, x, keys + kKeys * D);
  }

#pragma unroll
  for (int m = 0; m < M; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float total = warp_reduce<4>(sum[m][h], Sum{});
      const float inverse = total == 0 ? 0.0f : 1.0f / total;
      for (int i = 0; i < D / 8; ++i)
        for (int e = 0; e < 2; ++e) out[m][i][2 * h + e] *= inverse;
      const int row = mine + 16 * m + lane_id() / 4 + 8 * h;
      if (lane_id() % 4 == 0 && row < n)
        lse[a.row(at.batch, at.head, first + row)] =
            total == 0 ? -kInf : high[m][h] / kLog2E + logf(total);
    }
  cp_async_wait<0>();  // without a visible key the copy of the queries may still be running
  __syncthreads();
  const std::int64_t distance = std::int64_t{a.heads} * D;
  store_tokens<M, D>(out, query_tile, mine, y + query * distance + at.head * D, distance, n);
}

template <class T, int D, bool Dropout>
void forward(const AttentionArgs& a, const AttentionIn& in, const AttentionSpec& spec,
             const AttentionOut& out) {
  using Form = Forward<T, D, Dropout>;
  const std::int64_t tiles = blocks_for(spec.queries, Form::kQueries);
  launch(attention_fwd_kernel<T, D, Dropout>, grid_of(tiles * spec.heads * spec.batch),
         dim3(kTileThreads), Form::kShared, a, in.q.data<T>(), in.k.data<T>(), in.v.data<T>(),
         out.y.data<T>(), out.lse.data<float>());
}

}  // namespace

AttentionArgs attention_args(const AttentionIn& in, const AttentionSpec& a) {
  constexpr std::int64_t kMost = 1 << 29;
  check(a.queries < kMost && a.keys < kMost,
        "attention: a GPU takes fewer than {} tokens a row, got {} and {}", kMost, a.queries,
        a.keys);
  return {.queries = static_cast<int>(a.queries),
          .keys = static_cast<int>(a.keys),
          .heads = static_cast<int>(a.heads),
          .kv_heads = static_cast<int>(a.kv_heads),
          .head_dim = static_cast<int>(a.head_dim),
          .value_dim = static_cast<int>(a.value_dim),
          .window = static_cast<int>(std::min(a.window, kMost)),
          .causal = a.causal,
          .cu_seqlens = data_or_null<std::int32_t>(in.cu_seqlens),
          .sequences = in.cu_seqlens.defined() ? static_cast<int>(in.cu_seqlens.numel()) - 1 : 0,
          .scale = a.scale,
          .ldq = token_distance(in.q),
          .ldk = token_distance(in.k),
          .ldv = token_distance(in.v),
          .drop_below = static_cast<std::uint32_t>(std::ceil(a.dropout * 0x1p24)),
          .kept = 1 / (1 - a.dropout),
          .key = a.key,
          .key_heads = static_cast<int>(a.key_heads),
          .key_queries = static_cast<int>(a.queries / a.key_rows),
          .key_keys = static_cast<int>(a.keys / a.key_rows)};
}

void attention_fwd(const AttentionIn& in, const AttentionSpec& spec, const AttentionOut& out) {
  // The tiles take the largest score before they multiply it by the scale.
  if (!fits_tiles(in.q, in.k, in.v) || spec.scale <= 0)
    return generic::attention_fwd(in, spec, out);
  const AttentionArgs a = attention_args(in, spec);
  dispatch_tiles(in.q.dtype(), spec,
                 [&]<class T, int D, bool Dropout>() { forward<T, D, Dropout>(a, in, spec, out); });
}

}  // namespace weft::cuda
