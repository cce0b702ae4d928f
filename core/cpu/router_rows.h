#pragma once
// Rows of router scores: vector code in f32; plain loops in f64, which are the reference.
#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/core/cpu/simd.h"
#include "weft/core/kernels/operand.h"
#include "weft/core/kernels/router.h"

namespace weft::cpu {

/// The compute type of a router with logits of type T.
template <class T>
using RouterReal = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class R>
struct RouterRows;

template <>
struct RouterRows<float> {
  static const float* widened(const float* x, float*, std::int64_t) { return x; }
  template <class T>
  static const float* widened(const T* x, float* room, std::int64_t n) {
    simd().of<T>().widen(x, room, n);
    return room;
  }
  static float max(const float* x, std::int64_t n) { return simd().f32.max(x, n); }
  static float sum_exp(const float* x, float shift, std::int64_t n) {
    return simd().f32.sum_exp(x, shift, n);
  }
  static float dot(const float* x, const float* y, std::int64_t n) {
    return simd().f32.dot(x, y, n);
  }
  static void softmax(const float* x, float* y, std::int64_t n) { simd().f32.softmax(x, y, n); }
  static void exp(const float* x, float* y, std::int64_t n) { simd().f32.exp(x, y, n); }
  /// sigmoid or sqrt(softplus).
  static void score(RouterScore score, const float* x, float* y, std::int64_t n) {
    RowKernels<float>::Map* map =
        score == RouterScore::sigmoid ? simd().f32.sigmoid : simd().f32.sqrt_softplus;
    map(x, y, n);
  }
};

template <>
struct RouterRows<double> {
  static const double* widened(const double* x, double*, std::int64_t) { return x; }
  static double max(const double* x, std::int64_t n) {
    double top = -std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; i < n; ++i) top = std::max(top, x[i]);
    return top;
  }
  static double sum_exp(const double* x, double shift, std::int64_t n) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(x[i] - shift);
    return sum;
  }
  static double dot(const double* x, const double* y, std::int64_t n) {
    double total = 0;
    for (std::int64_t i = 0; i < n; ++i) total += x[i] * y[i];
    return total;
  }
  static void softmax(const double* x, double* y, std::int64_t n) {
    const double top = max(x, n), sum = sum_exp(x, top, n);
    for (std::int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i] - top) / sum;
  }
  static void exp(const double* x, double* y, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i]);
  }
  static void score(RouterScore score, const double* x, double* y, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = router_score(score, x[i]);
  }
};

inline constexpr std::int64_t kTokenLanes = 16;  // tokens that are computed side by side
inline constexpr std::int64_t kColumns = 64;     // experts that are transposed at a time

/// columns (n, 16) = elements first .. first + n of `tokens` rows of E; 0 for missing tokens.
template <class T>
void load_columns(const T* x, std::int64_t E, std::int64_t tokens, std::int64_t first,
                  std::int64_t n, Real<T>* columns) {
  constexpr std::int64_t L = kTokenLanes;
  if (tokens < L) std::fill_n(columns, n * L, Real<T>(0));
  if constexpr (std::is_same_v<T, double>) {
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t e = 0; e < n; ++e) columns[e * L + t] = x[t * E + first + e];
  } else if constexpr (std::is_same_v<T, float>) {
    simd().attention.transpose(x + first, E, tokens, n, 1.0f, columns, L);
  } else {
    alignas(64) float rows[L * kColumns];
    for (std::int64_t e = 0; e < n; e += kColumns) {
      const std::int64_t some = std::min(kColumns, n - e);
      for (std::int64_t t = 0; t < tokens; ++t)
        simd().of<T>().widen(x + t * E + first + e, rows + t * kColumns, some);
      simd().attention.transpose(rows, kColumns, tokens, some, 1.0f, columns + e * L, L);
    }
  }
}

/// The inverse: `tokens` rows of E from columns (E, 16).
template <class T>
void store_columns(const Real<T>* columns, std::int64_t E, std::int64_t tokens, T* out) {
  constexpr std::int64_t L = kTokenLanes;
  if constexpr (std::is_same_v<T, double>) {
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t e = 0; e < E; ++e) out[t * E + e] = columns[e * L + t];
  } else if constexpr (std::is_same_v<T, float>) {
    simd().attention.transpose(columns, L, E, tokens, 1.0f, out, E);
  } else {
    alignas(64) float rows[L * kColumns];
    for (std::int64_t e = 0; e < E; e += kColumns) {
      const std::int64_t some = std::min(kColumns, E - e);
      simd().attention.transpose(columns + e * L, L, some, tokens, 1.0f, rows, kColumns);
      for (std::int64_t t = 0; t < tokens; ++t)
        simd().of<T>().narrow(rows + t * kColumns, out + t * E + e, some);
    }
  }
}

}  // namespace weft::cpu
