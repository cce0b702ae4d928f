#pragma once
#include "weft/core/cpu/attention_block.h"
#include "weft/core/kernels/gated_delta.h"
#include "weft/core/kernels/operand.h"

namespace weft::cpu {

/// A view of a matrix: element (i, j) at p[i * row + j * col].
template <class T>
struct DeltaMatrix {
  T* p;
  std::int64_t row, col = 1;
  DeltaMatrix t() const { return {p, col, row}; }
  T* operator[](std::int64_t i) const { return p + i * row; }
};

/// What the chunks of f32 and f64 are computed with.
template <class T>
struct DeltaArithmetic {
  using M = DeltaMatrix<const T>;
  Steps<T> steps;

  /// c (m, n) = a (m, k) b (k, n), plus c when `add`; rows of b and c have no gaps.
  void product(DeltaMatrix<const T> a, DeltaMatrix<const T> b, DeltaMatrix<T> c, std::int64_t m,
               std::int64_t n, std::int64_t k, bool add = false) const {
    if (m > 0 && n > 0) steps.product(a.p, a.row, a.col, b.p, b.row, c.p, c.row, m, n, k, add);
  }
  // The same where a square matrix is triangular: blocks of rows leave out what is 0.
  static constexpr std::int64_t kRows = 16;

  /// The part on and below the diagonal of c (n, n) = a (n, k) b (k, n).
  void lower_part(DeltaMatrix<const T> a, DeltaMatrix<const T> b, DeltaMatrix<T> c, std::int64_t n,
                  std::int64_t k) const {
    for (std::int64_t r = 0; r < n; r += kRows) {
      const std::int64_t end = std::min(n, r + kRows);
      product({a[r], a.row, a.col}, b, {c[r], c.row}, end - r, end, k);
    }
  }
  /// c (n, d) = a (n, n) b (n, d) for a lower triangular a, plus c when `add`.
  void by_lower(DeltaMatrix<const T> a, DeltaMatrix<const T> b, DeltaMatrix<T> c, std::int64_t n,
                std::int64_t d, bool add = false) const {
    for (std::int64_t r = 0; r < n; r += kRows) {
      const std::int64_t end = std::min(n, r + kRows);
      product({a[r], a.row, a.col}, b, {c[r], c.row}, end - r, d, end, add);
    }
  }
  /// c (n, d) = a^T b for a lower triangular a.
  void by_lower_transposed(DeltaMatrix<const T> a, DeltaMatrix<const T> b, DeltaMatrix<T> c,
                           std::int64_t n, std::int64_t d, bool add = false) const {
    for (std::int64_t r = 0; r < n; r += kRows) {
      const std::int64_t end = std::min(n, r + kRows);
      product({a[r] + r, a.col, a.row}, {b[r], b.row}, {c[r], c.row}, end - r, d, n - r, add);
    }
  }
  /// out (d, n) = the transpose of x (n, d).
  void transpose(DeltaMatrix<const T> x, std::int64_t n, std::int64_t d, DeltaMatrix<T> out) const {
    if constexpr (std::is_same_v<T, float>) {
      simd().attention.transpose(x.p, x.row, n, d, 1, out.p, out.row);
    } else {
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t c = 0; c < d; ++c) out[c][i] = x[i][c];
    }
  }
  void exp(T* x, std::int64_t n) const {
    if constexpr (std::is_same_v<T, float>)
      simd().f32.exp(x, x, n);
    else
      for (std::int64_t i = 0; i < n; ++i) x[i] = std::exp(x[i]);
  }
  T dot(const T* x, const T* y, std::int64_t n) const { return steps.dot(x, y, n); }
};

/// The decays of a chunk. The logarithms are summed in f64: their differences are small numbers
/// between large ones.
template <class T>
struct DeltaDecay {
  static constexpr std::int64_t C = kDeltaChunk;
  double log[C];  ///< of what token i leaves of the state before the chunk
  T from_start[C], to_end[C], whole;

  DeltaDecay(const T* g, std::int64_t stride, std::int64_t n, const DeltaArithmetic<T>& math) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) log[i] = sum += delta_log_decay(g[i * stride]);
    for (std::int64_t i = 0; i < n; ++i) {
      from_start[i] = static_cast<T>(log[i]);
      to_end[i] = static_cast<T>(sum - log[i]);
    }
    whole = static_cast<T>(sum);
    math.exp(from_start, n);
    math.exp(to_end, n);
    math.exp(&whole, 1);
  }
  /// d[j] = what is left at token i of what token j added, for j <= i.
  void row(std::int64_t i, T* d, const DeltaArithmetic<T>& math) const {
    for (std::int64_t j = 0; j <= i; ++j) d[j] = static_cast<T>(log[i] - log[j]);
    math.exp(d, i + 1);
  }
};

inline constexpr std::int64_t kSolveRows = 8;

/// x (n, v) = (I - below)^-1 x, where `below` (n, n) is strictly lower triangular.
template <class T>
void solve_lower(const DeltaArithmetic<T>& math, DeltaMatrix<const T> below, DeltaMatrix<T> x,
                 std::int64_t n, std::int64_t v) {
  for (std::int64_t r = 0; r < n; r += kSolveRows) {
    const std::int64_t end = std::min(n, r + kSolveRows);
    const DeltaMatrix<const T> above{x.p, x.row}, block{x[r], x.row};
    if (r > 0) math.product({below[r], below.row}, above, {x[r], x.row}, end - r, v, r, true);
    for (std::int64_t i = r + 1; i < end; ++i)
      math.product({below[i] + r, below.row}, block, {x[i], x.row}, 1, v, i - r, true);
  }
}

/// x (n, v) = (I - below)^-T x.
template <class T>
void solve_lower_transposed(const DeltaArithmetic<T>& math, DeltaMatrix<const T> below,
                            DeltaMatrix<T> x, std::int64_t n, std::int64_t v) {
  for (std::int64_t r = (n - 1) / kSolveRows * kSolveRows; r >= 0; r -= kSolveRows) {
    const std::int64_t end = std::min(n, r + kSolveRows);
    if (end < n)
      math.product({below[end] + r, 1, below.row}, {x[end], x.row}, {x[r], x.row}, end - r, v,
                   n - end, true);
    for (std::int64_t i = end - 2; i >= r; --i)
      math.product({below[i + 1] + i, 1, below.row}, {x[i + 1], x.row}, {x[i], x.row}, 1, v,
                   end - 1 - i, true);
  }
}

template <class T>
struct DeltaOperands {
  const T *q, *k, *v, *g, *beta;

  /// From the inputs of either pass.
  template <class In>
  explicit DeltaOperands(const In& in)
      : q(in.q.template data<T>()),
        k(in.k.template data<T>()),
        v(in.v.template data<T>()),
        g(in.g.template data<T>()),
        beta(in.beta.template data<T>()) {}
};

/// One head of one chunk: its rows in the operands, and the matrices that both passes need. Names
/// follow the formulas: A couples the updates of the tokens, P weighs the updates in the outputs, X
/// are the updates.
template <class T>
struct DeltaHead {
  static constexpr std::int64_t C = kDeltaChunk;
  const GatedDeltaSpec& s;
  DeltaChunk at;
  DeltaArithmetic<T> math;
  DeltaMatrix<const T> q, k, v;
  const T *g, *beta;
  std::int64_t n, K, V, Hv;
  DeltaDecay<T> decay;

  DeltaHead(const GatedDeltaSpec& spec, const DeltaChunk& chunk, std::int64_t head,
            const DeltaOperands<T>& all)
      : s(spec),
        at(chunk),
        q(row(all.q, spec.key_heads, head / (spec.value_heads / spec.key_heads), spec.key_dim)),
        k(row(all.k, spec.key_heads, head / (spec.value_heads / spec.key_heads), spec.key_dim)),
        v(row(all.v, spec.value_heads, head, spec.value_dim)),
        g(all.g + chunk.first * spec.value_heads + head),
        beta(all.beta + chunk.first * spec.value_heads + head),
        n(chunk.count),
        K(spec.key_dim),
        V(spec.value_dim),
        Hv(spec.value_heads),
        decay(g, Hv, n, math) {}

  /// The chunk's rows of one head of (tokens, heads, width).
  template <class U>
  DeltaMatrix<U> row(U* p, std::int64_t heads, std::int64_t head, std::int64_t width) const {
    return {p + (at.first * heads + head) * width, heads * width};
  }

  /// below = -A and P, from k transposed; `each` gets row i of the decays and of k k^T before it is
  /// overwritten.
  template <class Each>
  void couple(DeltaMatrix<T> kt, DeltaMatrix<T> below, DeltaMatrix<T> p, Each each) const {
    const DeltaMatrix<const T> keys{kt.p, kt.row};
    math.transpose(k, n, K, kt);
    math.lower_part(k, keys, below, n, K);
    math.lower_part(q, keys, p, n, K);
    const T scale = static_cast<T>(s.scale);
    T d[C];
    for (std::int64_t i = 0; i < n; ++i) {
      decay.row(i, d, math);
      each(i, d, below[i]);
      const T b = beta[i * Hv];
      for (std::int64_t j = 0; j < i; ++j) below[i][j] *= -b * d[j];
      for (std::int64_t j = 0; j <= i; ++j) p[i][j] *= scale * d[j];
      std::fill(below[i] + i, below[i] + n, T(0));
      std::fill(p[i] + i + 1, p[i] + n, T(0));
    }
  }

  /// X = (I + A)^-1 (beta (v - e^G k S)).
  void updates(DeltaMatrix<const T> state, DeltaMatrix<const T> below, DeltaMatrix<T> x) const {
    math.product(k, state, x, n, V, K);
    for (std::int64_t i = 0; i < n; ++i) {
      const T b = beta[i * Hv], e = decay.from_start[i];
      for (std::int64_t c = 0; c < V; ++c) x[i][c] = b * (v[i][c] - e * x[i][c]);
    }
    solve_lower(math, below, x, n, V);
  }
};

}  // namespace weft::cpu
