#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/core/cpu/product.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/attention.h"

namespace weft::cpu {

// Blocks of scores live on the stack of the thread: their size is fixed.
inline constexpr std::int64_t kQueryBlock = 64, kKeyBlock = 256;

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
    const std::int64_t end = std::clamp<std::int64_t>(i + s - t + 1, 0, s);
    const std::int64_t begin =
        a.window > 0 ? std::max<std::int64_t>(0, i + s - t + 1 - a.window) : 0;
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

/// factors[i] = 0 where key `begin + i` of this query is dropped, else 1 / (1 - p). Weight
/// ((b H + h) T + t) S + s of the whole has that number of the key's sequence.
template <class T>
void dropout_factors(const AttentionSpec& a, const Sequence& seq, std::int64_t head,
                     std::int64_t query, std::int64_t begin, std::int64_t n, T* factors) {
  const std::int64_t row =
      (seq.batch * a.heads + head) * a.queries + seq.q0 - seq.batch * a.queries + query;
  const auto first = static_cast<std::uint64_t>(row * a.keys + seq.k0 - seq.batch * a.keys + begin);
  const T kept = static_cast<T>(1 / (1 - a.dropout));
  for (std::int64_t i = 0; i < n; ++i) {
    const float u = uniform_from_bits(random_bits(a.key, first + static_cast<std::uint64_t>(i)));
    factors[i] = u < a.dropout ? T(0) : kept;
  }
}

/// The row steps in the arithmetic of T: vectors for f32, plain loops for f64.
template <class T>
struct Rows;

template <>
struct Rows<float> {
  const AttentionRows& f = simd().attention;

  float max(const float* x, std::int64_t n) const { return f.max(x, n); }
  float exp_sum(float* x, std::int64_t n, float scale, float shift) const {
    return f.exp_sum(x, n, scale, shift);
  }
  void scores_bwd(const float* p, float* dp, std::int64_t n, float delta, float scale) const {
    f.scores_bwd(p, dp, n, delta, scale);
  }
  float dot(const float* x, const float* y, std::int64_t n) const { return f.dot(x, y, n); }
  void scale(float* x, std::int64_t n, float factor) const { f.scale(x, n, factor); }
};

template <>
struct Rows<double> {
  double max(const double* x, std::int64_t n) const {
    double m = -std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; i < n; ++i) m = x[i] > m || std::isnan(x[i]) ? x[i] : m;
    return m;
  }
  double exp_sum(double* x, std::int64_t n, double scale, double shift) const {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] * scale - shift);
    return sum;
  }
  void scores_bwd(const double* p, double* dp, std::int64_t n, double delta, double scale) const {
    for (std::int64_t i = 0; i < n; ++i) dp[i] = p[i] * (dp[i] - delta) * scale;
  }
  double dot(const double* x, const double* y, std::int64_t n) const {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
    return sum;
  }
  void scale(double* x, std::int64_t n, double factor) const {
    for (std::int64_t i = 0; i < n; ++i) x[i] *= factor;
  }
};

}  // namespace weft::cpu
