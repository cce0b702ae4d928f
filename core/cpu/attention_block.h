#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "weft/core/cpu/gemm_small.h"
#include "weft/core/cpu/packed_product.h"
#include "weft/core/cpu/processor.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/attention.h"

namespace weft::cpu {

// Scores lie with one query a lane and one key a row, so that every step of the softmax is a step
// of whole vectors. Blocks live on the stack of the thread: their size is fixed.
inline constexpr std::int64_t kLanes = 16, kQueryBlock = 64, kKeyBlock = 128, kDepth = 128;
inline constexpr int kGroups = kQueryBlock / kLanes;
// All groups of a block of queries that see a key at all meet their first one in the same block of
// keys, also with a window: so neighbours that see the same keys have started together.
static_assert(kQueryBlock <= kKeyBlock);

inline std::int64_t query_blocks(std::int64_t n) { return (n + kQueryBlock - 1) / kQueryBlock; }

/// A run of keys.
struct KeyRange {
  std::int64_t begin, end;
};

/// One sequence: `t` queries from row q0 of all B * T, `s` keys from row k0 of all B * S.
struct Sequence {
  std::int64_t q0, t, k0, s;
  std::int64_t batch;

  static Sequence at(const AttentionSpec& a, const std::int32_t* cu_seqlens, std::int64_t i) {
    if (cu_seqlens == nullptr) return {i * a.queries, a.queries, i * a.keys, a.keys, i};
    const std::int64_t first = cu_seqlens[i], n = cu_seqlens[i + 1] - first;
    return {first, n, first, n, 0};
  }

  /// Which keys query i sees. The last query is aligned with the last key.
  KeyRange visible(const AttentionSpec& a, std::int64_t i) const {
    if (!a.causal) return {0, s};
    const std::int64_t after = i + s - t + 1, end = std::clamp<std::int64_t>(after, 0, s);
    // A window may be as long as its type allows.
    const std::int64_t begin = a.window > 0 && after > a.window ? after - a.window : 0;
    return {std::min(begin, end), end};
  }
  /// Which keys at least one of the queries [first, first + n) sees.
  KeyRange visible(const AttentionSpec& a, std::int64_t first, std::int64_t n) const {
    return {visible(a, first).begin, visible(a, first + n - 1).end};
  }
};

/// The part of `seen` inside the block of keys [begin, begin + n), counted from the block's begin.
inline KeyRange within(KeyRange seen, std::int64_t begin, std::int64_t n) {
  const std::int64_t b = std::clamp<std::int64_t>(seen.begin - begin, 0, n);
  return {b, std::clamp<std::int64_t>(seen.end - begin, b, n)};
}

/// The number that the first weight of a query, that of key `begin`, has in the key's sequence.
/// Weight ((b H + h) T + t) S + s of the whole has that number, where H is key_heads and b counts
/// the rows side by side in a packed row.
inline std::uint64_t dropout_number(const AttentionSpec& a, const Sequence& seq, std::int64_t head,
                                    std::int64_t query, std::int64_t begin) {
  const std::int64_t queries = a.queries / a.key_rows, keys = a.keys / a.key_rows;
  const std::int64_t b = seq.q0 / queries;
  const std::int64_t row = (b * a.key_heads + head) * queries + seq.q0 - b * queries + query;
  return a.key.first + static_cast<std::uint64_t>(row * keys + seq.k0 - b * keys + begin);
}

/// A query head of a sequence.
struct SequenceHead {
  Sequence seq;
  std::int64_t head;
};

/// How many blocks of queries before its own turn a block's rows are queued, where a thread
/// computes `blocks` of a head.
inline std::int64_t blocks_ahead(std::int64_t blocks) { return std::min<std::int64_t>(blocks, 4); }

/// Memory for copies of the keys that `queries` see, `n` numbers, and for `more` numbers; null
/// where copies do not pay. A tensor stores the heads of a token side by side, so consecutive rows
/// of one head are far apart. Where that distance is a multiple of a large power of two, the rows
/// share few sets of a cache. Copies pay where more than a few blocks of queries meet a key; with
/// the narrow tiles of AVX2, which read a row more often, earlier on AMD's processors.
template <class T>
T* room_for_rows(const AttentionSpec& a, std::int64_t queries, std::int64_t n,
                 std::int64_t more = 0) {
  constexpr std::int64_t kMostBytes = 8 << 20;  // a thread keeps them
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(T));
  const bool early = is_amd() && std::string_view(simd().name) == "avx2";
  const std::int64_t few = (early ? 2 : 4) * kQueryBlock;
  if ((a.window > 0 ? std::min(queries, a.window) : queries) <= few || n * kSize > kMostBytes)
    return nullptr;
  return static_cast<T*>(packing_buffer(static_cast<std::size_t>((n + more) * kSize)));
}

template <class T>
void copy_rows(const T* from, std::int64_t ld_from, std::int64_t rows, std::int64_t n, T* to,
               std::int64_t ld_to) {
  for (std::int64_t i = 0; i < rows; ++i) std::copy_n(from + i * ld_from, n, to + i * ld_to);
}

/// x (keys, 16), rows of a block of scores, times factors.
template <class T>
void multiply_lanes(T* x, const T* factors, std::int64_t keys) {
  for (std::int64_t j = 0; j < keys; ++j)
    for (std::int64_t i = 0; i < kLanes; ++i) x[j * kQueryBlock + i] *= factors[j * kLanes + i];
}

/// The keys of a block that each query of a block sees, by groups of sixteen queries.
class BlockKeys {
 public:
  /// Queries [first, first + n), keys [s, s + m).
  BlockKeys(const Sequence& seq, const AttentionSpec& a, std::int64_t first, std::int64_t n,
            std::int64_t s, std::int64_t m)
      : queries_(n), keys_(m) {
    for (int g = 0; g < kGroups; ++g) {
      LaneKeys& group = groups_[g];
      group = {m, 0, m, 0, {}, {}};
      for (std::int64_t i = 0; i < kLanes; ++i) {
        const std::int64_t query = g * kLanes + i;
        KeyRange seen{0, 0};
        if (query < n) seen = within(seq.visible(a, first + query), s, m);
        group.first[i] = static_cast<float>(seen.begin);
        group.stop[i] = static_cast<float>(seen.end);
        group.all_begin = std::max(group.all_begin, seen.begin);
        group.all_end = std::min(group.all_end, seen.end);
        if (seen.begin == seen.end) continue;
        group.begin = std::min(group.begin, seen.begin);
        group.end = std::max(group.end, seen.end);
      }
      // In whole groups of sixteen keys, as by_keys() has them: what no query sees becomes 0.
      group.begin = group.begin / kLanes * kLanes;
      group.end = std::min(m, (group.end + kLanes - 1) / kLanes * kLanes);
      if (group.begin >= group.end) group.begin = group.end = 0;
      if (group.all_begin >= group.all_end) group.all_begin = group.all_end = group.end;
    }
  }

  const LaneKeys& operator[](int g) const { return groups_[g]; }
  bool empty(int g) const { return groups_[g].begin == groups_[g].end; }
  /// Queries of group g.
  std::int64_t queries(int g) const {
    return std::clamp<std::int64_t>(queries_ - g * kLanes, 0, kLanes);
  }

  /// f(first key, keys, first query, queries): rectangles that cover all pairs that see each other.
  /// The groups of queries that see a key are neighbours, since ranges grow with the query.
  template <class F>
  void by_keys(F f) const {
    for (std::int64_t j = 0, next; j < keys_; j = next) {
      next = std::min(j + kLanes, keys_);
      const Groups groups = seeing(j, next);
      while (next < keys_ && seeing(next, std::min(next + kLanes, keys_)) == groups)
        next = std::min(next + kLanes, keys_);
      if (groups.begin < groups.end)
        f(j, next - j, groups.begin * kLanes, (groups.end - groups.begin) * kLanes);
    }
  }

  /// f(first group, groups, first key, keys): neighbouring groups that see the same keys.
  template <class F>
  void by_queries(F f) const {
    for (int g = 0, next; g < kGroups; g = next) {
      const LaneKeys& k = groups_[g];
      for (next = g + 1; next < kGroups; ++next)
        if (groups_[next].begin != k.begin || groups_[next].end != k.end) break;
      if (k.begin < k.end) f(g, next - g, k.begin, k.end - k.begin);
    }
  }

 private:
  struct Groups {
    int begin, end;
    bool operator==(const Groups&) const = default;
  };
  Groups seeing(std::int64_t from, std::int64_t to) const {
    Groups s{kGroups, 0};
    for (int g = 0; g < kGroups; ++g)
      if (groups_[g].begin < to && from < groups_[g].end) s = {std::min(s.begin, g), g + 1};
    return s;
  }

  std::int64_t queries_, keys_;
  LaneKeys groups_[kGroups];
};

/// The steps in the arithmetic of T: vectors for f32, plain loops for f64. A product is
/// c (m, n) = a (m, k) b (k, n), plus c to `accumulate`; a_row or a_col is 1.
template <class T>
struct Steps;

template <>
struct Steps<float> {
  const AttentionKernels& f = simd().attention;
  RowsAhead* ahead = nullptr;

  /// From now on products fetch what `queue` holds, which must be of this thread alone. Comes
  /// before keep() and fetch().
  void use(RowsAhead* queue) { ahead = queue; }
  /// Forgets all of the queue but its last n entries.
  void keep(std::int64_t n) const {
    if (ahead->end - ahead->first <= n) return;
    ahead->first = ahead->end - static_cast<unsigned>(n);
    ahead->row = 0;
  }
  /// Adds `count` rows of n numbers to the queue.
  void fetch(const float* at, std::int64_t ld, std::int64_t count, std::int64_t n) const {
    if (count <= 0 || n <= 0) return;
    keep(RowsAhead::kMost - 1);
    ahead->queue[ahead->end++ % RowsAhead::kMost] = {at, ld, count, n};
  }

  void product(const float* a, std::int64_t a_row, std::int64_t a_col, const float* b,
               std::int64_t ldb, float* c, std::int64_t ldc, std::int64_t m, std::int64_t n,
               std::int64_t k, bool accumulate) const {
    f.product({.a = a,
               .lda = a_col == 1 ? a_row : a_col,
               .trans_a = a_col != 1,
               .b = b,
               .ldb = ldb,
               .c = c,
               .ldc = ldc,
               .m = m,
               .n = n,
               .k = k,
               .start = accumulate ? c : nullptr,
               .start_row = accumulate ? ldc : 0,
               .ahead = ahead});
  }
  void softmax_step(float* x, const LaneKeys& keys, float* high, float* sum, float* shrink) const {
    f.softmax_step(x, kQueryBlock, keys, high, sum, shrink);
  }
  void probabilities(float* x, const LaneKeys& keys, const float* lse) const {
    f.probabilities(x, kQueryBlock, keys, lse);
  }
  void scores_bwd(const float* p, float* dp, const LaneKeys& keys, const float* delta,
                  float scale) const {
    f.scores_bwd(p, dp, kQueryBlock, keys, delta, scale);
  }
  float dot(const float* x, const float* y, std::int64_t n) const {
    return simd().f32.dot(x, y, n);
  }
  void scale(float* x, std::int64_t n, float factor) const { f.scale(x, n, factor); }
  void transpose(const float* x, std::int64_t ld, std::int64_t n, std::int64_t d, float scale,
                 float* out) const {
    f.transpose(x, ld, n, d, scale, out, kQueryBlock);
  }
  void dropout_factors(const AttentionSpec& a, const std::uint64_t* first, std::int64_t keys,
                       float* factors) const {
    const auto threshold = static_cast<float>(std::ceil(a.dropout * 0x1p24));
    simd().random.dropout_factors(a.key, first, keys, threshold,
                                  static_cast<float>(1 / (1 - a.dropout)), factors);
  }
};

template <>
struct Steps<double> {
  void use(RowsAhead*) {}
  void keep(std::int64_t) const {}
  void fetch(const double*, std::int64_t, std::int64_t, std::int64_t) const {}
  void product(const double* a, std::int64_t a_row, std::int64_t a_col, const double* b,
               std::int64_t ldb, double* c, std::int64_t ldc, std::int64_t m, std::int64_t n,
               std::int64_t k, bool accumulate) const {
    SmallGemm<double>{a, b, c, n, k, a_row, a_col, ldb, 1, ldc, accumulate}.rows(0, m);
  }
  void softmax_step(double* x, const LaneKeys& keys, double* high, double* sum,
                    double* shrink) const {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kLanes; ++i) {
      double top = high[i], total = 0;
      each_key(x, keys, i, [&](double& v, bool seen) { top = seen && v > top ? v : top; });
      const double shift = top == -kInf ? 0 : top;
      each_key(x, keys, i, [&](double& v, bool seen) {
        v = seen ? std::exp(v - shift) : 0;
        total += v;
      });
      shrink[i] = std::exp(high[i] - shift);
      sum[i] = sum[i] * shrink[i] + total;
      high[i] = top;
    }
  }
  void probabilities(double* x, const LaneKeys& keys, const double* lse) const {
    for (int i = 0; i < kLanes; ++i)
      each_key(x, keys, i, [&](double& v, bool seen) { v = seen ? std::exp(v - lse[i]) : 0; });
  }
  void scores_bwd(const double* p, double* dp, const LaneKeys& keys, const double* delta,
                  double scale) const {
    for (int i = 0; i < kLanes; ++i) {
      const double* prob = p + keys.begin * kQueryBlock + i;
      each_key(dp, keys, i, [&](double& grad, bool seen) {
        grad = seen ? *prob * (grad - delta[i]) * scale : 0;
        prob += kQueryBlock;
      });
    }
  }
  double dot(const double* x, const double* y, std::int64_t n) const {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
    return sum;
  }
  void scale(double* x, std::int64_t n, double factor) const {
    for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
  }
  void transpose(const double* x, std::int64_t ld, std::int64_t n, std::int64_t d, double scale,
                 double* out) const {
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t c = 0; c < d; ++c) out[c * kQueryBlock + i] = x[i * ld + c] * scale;
  }
  void dropout_factors(const AttentionSpec& a, const std::uint64_t* first, std::int64_t keys,
                       double* factors) const {
    const RandomKey key{a.key.seed, a.key.stream, 0};
    for (int i = 0; i < kLanes; ++i)
      for (std::int64_t j = 0; j < keys; ++j) {
        const float u =
            uniform_from_bits(random_bits(key, first[i] + static_cast<std::uint64_t>(j)));
        factors[j * kLanes + i] = u < a.dropout ? 0 : 1 / (1 - a.dropout);
      }
  }

 private:
  template <class F>
  static void each_key(double* x, const LaneKeys& keys, int lane, F f) {
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const auto key = static_cast<float>(j);
      f(x[j * kQueryBlock + lane], key >= keys.first[lane] && key < keys.stop[lane]);
    }
  }
};

/// factors (keys, 16): 0 where a query of the group that begins at `query` drops key `begin` + row,
/// else 1 / (1 - p).
template <class T>
void dropout_factors(const AttentionSpec& a, const Sequence& seq, std::int64_t head,
                     std::int64_t query, std::int64_t begin, std::int64_t keys,
                     const Steps<T>& steps, T* factors) {
  std::uint64_t first[kLanes];
  for (int i = 0; i < kLanes; ++i) first[i] = dropout_number(a, seq, head, query + i, begin);
  steps.dropout_factors(a, first, keys, factors);
}

/// out (d, 64) = the transpose of x (n, d), times `scale`; zeros for queries from n to a whole
/// group.
template <class T>
void transpose_queries(const T* x, std::int64_t ld, std::int64_t n, std::int64_t d, T scale,
                       const Steps<T>& steps, T* out) {
  const std::int64_t whole = (n + kLanes - 1) / kLanes * kLanes;
  steps.transpose(x, ld, n, d, scale, out);
  for (std::int64_t c = 0; n < whole && c < d; ++c)
    std::fill(out + c * kQueryBlock + n, out + c * kQueryBlock + whole, T(0));
}

/// A block of queries (or of their gradients) against rows of keys (or values): their dot products,
/// one query per lane. Narrow heads are transposed once, wider ones piece by piece.
template <class T>
class LaneScores {
 public:
  LaneScores(const T* x, std::int64_t ld, std::int64_t n, std::int64_t d, T scale,
             const Steps<T>& steps)
      : x_(x), ld_(ld), n_(n), d_(d), scale_(scale) {
    if (d <= kDepth) transpose_queries(x, ld, n, d, scale, steps, packed_);
  }

  /// scores (keys, 64), for keys that some query sees.
  void against(const T* rows, std::int64_t ld, const BlockKeys& keys, const Steps<T>& steps,
               T* scores) {
    for (std::int64_t c = 0; c < d_; c += kDepth) {
      const std::int64_t depth = std::min(kDepth, d_ - c);
      if (d_ > kDepth) transpose_queries(x_ + c, ld_, n_, depth, scale_, steps, packed_);
      keys.by_keys([&](std::int64_t j, std::int64_t count, std::int64_t i, std::int64_t queries) {
        steps.product(rows + j * ld + c, ld, 1, packed_ + i, kQueryBlock,
                      scores + j * kQueryBlock + i, kQueryBlock, count, queries, depth, c > 0);
      });
    }
  }

 private:
  const T* x_;
  std::int64_t ld_, n_, d_;
  T scale_;
  alignas(64) T packed_[kDepth * kQueryBlock];  // each load inside one line of the cache
};

}  // namespace weft::cpu
