#include <limits>

#include "weft/cuda/attention_tile.h"

namespace weft::cuda {
namespace {

constexpr int kRowThreads = 128;

// Fills the scratch, see row_pairs(): `Lanes` threads a row, which read N elements at a time.
template <class T, int Lanes, int N>
__global__ void __launch_bounds__(kRowThreads)
    attention_rows_kernel(AttentionArgs a, std::int64_t padded_rows, const T* y, const T* dy,
                          const Real<T>* lse, Real<T> unit, Real<T>* scratch) {
  using R = Real<T>;
  const int padded = a.padded_queries();
  const std::int64_t at =
      (std::int64_t{blockIdx.x} * kRowThreads + static_cast<int>(threadIdx.x)) / Lanes;
  const std::int64_t of_head = at / padded;  // b * H + h
  const int i = static_cast<int>(at % padded), lane = static_cast<int>(threadIdx.x) % Lanes;
  const bool real = at < padded_rows && i < a.queries;
  R sum = 0;
  if (real) {
    const std::int64_t batch = of_head / a.heads, head = of_head % a.heads;
    const std::int64_t from = ((batch * a.queries + i) * a.heads + head) * a.head_dim;
    for (int d = lane * N; d < a.head_dim; d += Lanes * N) {
      const Pack<T, N> u = load_pack<T, N>(y + from + d), w = load_pack<T, N>(dy + from + d);
      for (int j = 0; j < N; ++j) sum += static_cast<R>(u[j]) * static_cast<R>(w[j]);
    }
  }
  sum = warp_reduce<Lanes>(sum, Sum{});
  if (at < padded_rows && lane == 0) {
    constexpr R kInf = std::numeric_limits<R>::infinity();
    const R level = real ? lse[of_head * a.queries + i] : -kInf;
    scratch[2 * at] = level == -kInf ? kInf : level * unit;
    scratch[2 * at + 1] = sum;
  }
}

template <class T, int Lanes, int N>
void fill_scratch(const AttentionArgs& a, const Tensor& y, const Tensor& dy, const Tensor& lse,
                  Real<T> unit, const Tensor& scratch) {
  const std::int64_t rows = scratch.numel() / 2;
  launch(attention_rows_kernel<T, Lanes, N>, grid_of(blocks_for(rows * Lanes, kRowThreads)),
         dim3(kRowThreads), 0, a, rows, y.data<T>(), dy.data<T>(), lse.data<Real<T>>(), unit,
         scratch.data<Real<T>>());
}

// Both passes compute the probabilities again, from scores and lse. The first has a tile of 64
// queries and passes over the keys, the second a tile of 64 keys and passes over the queries, so
// that every sum has one owner and one order. Queries and keys change places between them.
constexpr int kRowsOfTile = kTileWarps * 16;

// The rows of a narrow head stay in registers.
template <int D>
using Rows = std::conditional_t<D == 64, RowFragments<1, D>, RowsInTile<D>>;

template <int D>
struct Queries {
  static constexpr int kColumns = 64;
  static constexpr std::size_t kShared = sizeof(bf16) * D * (2 * kRowsOfTile + 4 * kColumns);
};

template <int D, bool Dropout>
__global__ void __launch_bounds__(kTileThreads, 2)
    attention_dq_kernel(AttentionArgs a, const bf16* q, const bf16* k, const bf16* v,
                        const bf16* dy, const float* scratch, bf16* dq) {
  constexpr int kColumns = Queries<D>::kColumns;
  bf16* const query_tile = dynamic_shared<bf16>();
  bf16* const grad_tile = query_tile + kRowsOfTile * D;
  bf16* const key_tiles = grad_tile + kRowsOfTile * D;  // key, value, key, value
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
    bf16* const tile = key_tiles + stage * 2 * kColumns * D;
    copy_tokens<kColumns, D>(tile, k + token * a.ldk + head, a.ldk, count);
    copy_tokens<kColumns, D>(tile + kColumns * D, v + token * a.ldv + head, a.ldv, count);
    cp_async_commit();
  };
  copy_tokens<kRowsOfTile, D>(query_tile, q + query * a.ldq + at.head * D, a.ldq, n);
  copy_tokens<kRowsOfTile, D>(grad_tile, dy + out, distance, n);
  if (begin < end) start_copy(begin, 0);

  const float unit = static_cast<float>(a.scale) * kLog2E;
  const float* const pairs = row_pairs(scratch, a, at.batch, at.head) + 2 * (first + lane_row);
  const float level[2] = {pairs[0], pairs[16]}, delta[2] = {pairs[1], pairs[17]};
  Rows<D> queries, grads;
  float sum[1][D / 8][4] = {};

  for (int from = begin, stage = 0; from < end; from += kColumns, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // the tile is there, and nobody needs the one before it
    if (from == begin) {
      queries.load(query_tile, mine);
      grads.load(grad_tile, mine);
    }
    if (from + kColumns < end) start_copy(from + kColumns, stage ^ 1);
    const bf16* const keys = key_tiles + stage * 2 * kColumns * D;
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
    each_element<1, kColumns>([&](int m, int i, int h, int e, int row, int column) {
      float& x = ds[m][i][2 * h + e];
      if constexpr (Dropout) {
        const bool drop = a.drops(a.row(at.batch, at.head, first + mine + row), from + column);
        x *= drop ? 0.0f : static_cast<float>(a.kept);
      }
      x = p[m][i][2 * h + e] * (x - delta[h]);
    });
    add_weighted_tile<1, kColumns, D>(sum, ds, keys);
  }

  each_element<1, D>([&](int m, int i, int h, int e, int, int) {
    sum[m][i][2 * h + e] *= static_cast<float>(a.scale);
  });
  cp_async_wait<0>();  // where no key is seen the queries may still be on their way
  __syncthreads();
  store_tokens<1, D>(sum, query_tile, mine, dq + out, distance, n);
}

// Two sums of the width of a head leave few registers for the scores.
template <int D, bool Dropout>
struct Keys {
  static constexpr int kColumns = (D == 64 ? 64 : 32) / (Dropout ? 2 : 1);
  static constexpr std::size_t kShared =
      sizeof(bf16) * D * (2 * kRowsOfTile + 4 * kColumns) + sizeof(float) * 2 * 2 * kColumns;
  static_assert(kAttentionPad % kColumns == 0);
};

// The heads of a group of queries pass by one after another.
template <int D, bool Dropout>
__global__ void __launch_bounds__(kTileThreads, 2)
    attention_dkdv_kernel(AttentionArgs a, const bf16* q, const bf16* k, const bf16* v,
                          const bf16* dy, const float* scratch, bf16* dk, bf16* dv) {
  constexpr int kColumns = Keys<D, Dropout>::kColumns;
  bf16* const key_tile = dynamic_shared<bf16>();
  bf16* const value_tile = key_tile + kRowsOfTile * D;
  bf16* const query_tiles = value_tile + kRowsOfTile * D;  // query, dy, query, dy
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
    bf16* const tile = query_tiles + stage * 2 * kColumns * D;
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
  int head = at.head * a.share(), from = begin;
  if (tiles > 0) start_copy(head, from, 0);

  const float unit = static_cast<float>(a.scale) * kLog2E;
  Rows<D> keys, values;
  float sum_k[1][D / 8][4] = {}, sum_v[1][D / 8][4] = {};

  for (int left = tiles * a.share(), stage = 0; left > 0; --left, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // the tile is there, and nobody needs the one before it
    if (left == tiles * a.share()) {
      keys.load(key_tile, mine);
      values.load(value_tile, mine);
    }
    const bool turn = from + kColumns >= end;
    const int next_head = head + turn, next_from = turn ? begin : from + kColumns;
    if (left > 1) start_copy(next_head, next_from, stage ^ 1);
    const bf16* const queries = query_tiles + stage * 2 * kColumns * D;
    const bf16* const grads = queries + kColumns * D;
    const float* const pairs = pair_tiles + stage * 2 * kColumns;
    float p[1][kColumns / 8][4], ds[1][kColumns / 8][4];
    dot_tile<1, kColumns, D>(p, keys, queries);
    each_element<1, kColumns>([&](int m, int i, int h, int e, int, int column) {
      float& x = p[m][i][2 * h + e];
      x = exp2_approx(x * unit - pairs[2 * column]);
    });
    if (from < last_row.begin || from + kColumns > top_row.end)
      each_element<1, kColumns>([&](int m, int i, int h, int e, int row, int column) {
        if (!seen[mine + row].contains(from + column)) p[m][i][2 * h + e] = 0;
      });
    std::uint32_t dropped = 0;  // one bit an element
    if constexpr (Dropout)
      each_element<1, kColumns>([&](int, int i, int h, int e, int row, int column) {
        if (a.drops(a.row(at.batch, head, from + column), first + mine + row))
          dropped |= 1u << (4 * i + 2 * h + e);
      });
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
    each_element<1, kColumns>([&](int m, int i, int h, int e, int, int column) {
      float& x = ds[m][i][2 * h + e];
      if constexpr (Dropout) x *= factor(i, h, e);
      x = p[m][i][2 * h + e] * (x - pairs[2 * column + 1]);
    });
    add_weighted_tile<1, kColumns, D>(sum_k, ds, queries);
    head = next_head;
    from = next_from;
  }

  each_element<1, D>([&](int m, int i, int h, int e, int, int) {
    sum_k[m][i][2 * h + e] *= static_cast<float>(a.scale);
  });
  cp_async_wait<0>();  // where no query sees a key the keys may still be on their way
  __syncthreads();
  const std::int64_t distance = std::int64_t{a.kv_heads} * D, out = token * distance + at.head * D;
  store_tokens<1, D>(sum_k, key_tile, mine, dk + out, distance, n);
  store_tokens<1, D>(sum_v, value_tile, mine, dv + out, distance, n);
}

template <int D, bool Dropout>
void backward(const AttentionArgs& a, const Tensor& q, const Tensor& k, const Tensor& v,
              const AttentionSpec& spec, const Tensor& dy, const Tensor& scratch, const Tensor& dq,
              const Tensor& dk, const Tensor& dv) {
  launch(attention_dq_kernel<D, Dropout>,
         grid_of(blocks_for(spec.queries, kRowsOfTile) * spec.heads * spec.batch),
         dim3(kTileThreads), Queries<D>::kShared, a, q.data<bf16>(), k.data<bf16>(), v.data<bf16>(),
         dy.data<bf16>(), scratch.data<float>(), dq.data<bf16>());
  launch(attention_dkdv_kernel<D, Dropout>,
         grid_of(blocks_for(spec.keys, kRowsOfTile) * spec.kv_heads * spec.batch),
         dim3(kTileThreads), Keys<D, Dropout>::kShared, a, q.data<bf16>(), k.data<bf16>(),
         v.data<bf16>(), dy.data<bf16>(), scratch.data<float>(), dk.data<bf16>(), dv.data<bf16>());
}

}  // namespace

void attention_bwd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cu_seqlens,
                   const AttentionSpec& spec, const Tensor& y, const Tensor& lse, const Tensor& dy,
                   const Tensor& scratch, const Tensor& dq, const Tensor& dk, const Tensor& dv) {
  const AttentionArgs a = attention_args(q, k, v, cu_seqlens, spec);
  if (fits_tiles(q, k, v) && aligned_tokens(y) && aligned_tokens(dy)) {
    dispatch_tiles(spec, [&]<int D, bool Dropout>() {
      fill_scratch<bf16, D / 8, 8>(a, y, dy, lse, kLog2E, scratch);
      backward<D, Dropout>(a, q, k, v, spec, dy, scratch, dq, dk, dv);
    });
  } else {
    dispatch_floating(q.dtype(), [&]<class T>() {
      fill_scratch<T, kWarp, 1>(a, y, dy, lse, Real<T>(1), scratch);
    });
    generic::attention_bwd(q, k, v, cu_seqlens, spec, y, lse, dy, scratch, dq, dk, dv);
  }
}

}  // namespace weft::cuda
