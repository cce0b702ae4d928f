#pragma once
#include <cstdint>
#include <type_traits>

#include "weft/core/kernels/recurrent_cell.h"
#include "weft/core/kernels/rounding.h"
#include "weft/core/low_precision.h"
#include "weft/core/philox.h"

namespace weft {

/// Whether there are row kernels for a type in which ops compute.
template <class T>
inline constexpr bool kHasRows = !std::is_same_v<T, double> && !std::is_integral_v<T>;

/// sums (rows, columns) = x (rows, n) y (columns, n)^T, with the distances of their rows.
template <class T>
struct DotProducts {
  const T* x;
  std::int64_t ldx = 0;
  std::int64_t rows;
  const T* y;
  std::int64_t ldy = 0;
  std::int64_t columns;
  std::int64_t n;
  float* sums;
  std::int64_t ld_sums = 0;
};

/// Functions over one contiguous row (or array) of n elements. T is float, bf16 or f16. Arithmetic
/// is f32 in sixteen lanes with a fixed summation order, so every instruction set gives the same
/// bits.
template <class T>
struct RowKernels {
  using Map = void(const T* x, T* y, std::int64_t n);
  /// Inputs: x (or y, for tanh, sigmoid and the softmaxes) and dy.
  using MapBwd = void(const T* x, const T* dy, T* dx, std::int64_t n);

  void (*widen)(const T* x, float* y, std::int64_t n);
  void (*narrow)(const float* x, T* y, std::int64_t n);

  Map *exp, *log, *tanh, *erf, *sigmoid, *gelu_tanh, *gelu_erf, *silu;
  Map* sqrt_softplus;  // sqrt(log(1 + exp(x)))
  MapBwd *tanh_bwd, *sigmoid_bwd, *gelu_tanh_bwd, *gelu_erf_bwd, *silu_bwd;
  /// Also y = gelu(x), with one exponential fewer than the two kernels and the bits of both. dx may
  /// be dy, and y may be x.
  void (*gelu_tanh_bwd_and_y)(const T* x, const T* dy, T* dx, T* y, std::int64_t n);
  void (*gelu_erf_bwd_and_y)(const T* x, const T* dy, T* dx, T* y, std::int64_t n);
  Map *softmax, *log_softmax;
  MapBwd *softmax_bwd, *log_softmax_bwd;

  /// A null residual, weight or bias is absent; with a residual, also writes sum = x + residual.
  /// rms_norm multiplies by weight + offset; layer_norm ignores the offset.
  using NormFwd = void(const T* x, const T* residual, const T* weight, float offset, const T* bias,
                       float eps, T* sum, T* y, std::int64_t n, float* mean, float* rstd);
  /// Adds dsum to dx, and adds to dweight and dbias; any of these three may be null.
  using NormBwd = void(const T* x, const T* dy, const T* weight, float offset, const T* dsum,
                       float mean, float rstd, T* dx, float* dweight, float* dbias, std::int64_t n);
  NormFwd *layer_norm, *rms_norm;
  NormBwd *layer_norm_bwd, *rms_norm_bwd;

  void (*swiglu)(const T* gate, const T* up, T* y, std::int64_t n);
  void (*swiglu_bwd)(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t n);

  using Reduce = float(const T* x, std::int64_t n);
  Reduce *max, *sum;                                          // max drops NaN
  float (*sum_exp)(const T* x, float shift, std::int64_t n);  // of exp(x - shift)
  /// dx = exp(x - shift) * scale - offset
  void (*cross_entropy_bwd)(const T* x, float shift, float scale, float offset, T* dx,
                            std::int64_t n);

  /// In sixteen f64 sums, which are then added.
  double (*sum_squares)(const T* x, std::int64_t n);
  float (*dot)(const T* x, const T* y, std::int64_t n);  ///< the sum of x y
  /// The same for each pair of rows.
  void (*dots)(const DotProducts<T>& dots);
  /// sums[c] = x[c] + x[stride + c] + ... over n rows, in this order and in f32.
  void (*column_sums)(const T* x, std::int64_t n, std::int64_t stride, std::int64_t width,
                      float* sums);
  /// Rotates the heads of one token, pairing its two halves; sin is multiplied by `sign`.
  void (*rope)(const T* x, const float* cos, const float* sin, std::int64_t heads,
               std::int64_t half, float sign, T* y);

  /// One token of a causal depthwise convolution: y = sum over d < taps of x[d * step] w[-d * n],
  /// then silu. Backward: from dy, the gradient before the activation (also added to the sums of
  /// the taps, unless dw is null); from that, the gradient of x.
  void (*conv)(const T* x, std::int64_t step, const float* w, std::int64_t taps, bool silu, T* y,
               std::int64_t n);
  void (*conv_bwd)(const T* x, std::int64_t step, const float* w, std::int64_t taps, bool silu,
                   const T* dy, float* dpre, float* dw, std::int64_t n);
  void (*conv_input_grad)(const float* dpre, std::int64_t step, const float* w, std::int64_t taps,
                          T* dx, std::int64_t n);

  /// y = 0 where number < threshold, else x * scale.
  void (*dropout)(const T* x, const float* numbers, float threshold, float scale, T* y,
                  std::int64_t n);
};

/// Draws from a key's sequence. A number is random_bits() >> 8: 24 bits, exact in f32.
struct RandomKernels {
  /// Draws `blocks` Philox blocks starting at block `first`; blocks is a multiple of 16.
  void (*draw)(const RandomKey& key, std::uint64_t first, std::int64_t blocks, float* numbers);
  /// The same with all 32 bits of each number.
  void (*words)(const RandomKey& key, std::uint64_t first, std::int64_t blocks,
                std::uint32_t* words);
  /// factors (rows, 16): row j of column i is 0 where number first[i] + j is below threshold, else
  /// `kept`. `first` counts from number 0, regardless of key.first.
  void (*dropout_factors)(const RandomKey& key, const std::uint64_t* first, std::int64_t rows,
                          float threshold, float kept, float* factors);
};

/// The constants of one Adam step, in f32. See AdamStep in core/kernels/optimizer.h.
struct AdamConstants {
  float grad_scale, beta1, beta2, eps, bias_correction1, bias_correction2, lr, weight_decay;
  bool decoupled;
};

/// Random bits of stochastic rounding: 16 of each element's word, from bit `shift` (0 or 16) on.
struct RandomHalves {
  const std::uint32_t* words = nullptr;  ///< null: round to nearest
  int shift = 0;
};

struct OptimizerKernels {
  /// y = x * scale, and y = x / scale (0 for scale 0), which with `keeps_above_zero` is above 0
  /// where x is.
  void (*widen_scaled)(const f16* x, float scale, float* y, std::int64_t n);
  void (*narrow_scaled)(const float* x, float scale, bool keeps_above_zero, f16* y, std::int64_t n);
  /// Rounds stochastically (core/kernels/rounding.h).
  void (*narrow_random)(const float* x, const RandomHalves& random, bf16* y, std::int64_t n);
  /// Blocks of e4m3 with their exponents; x and y start with a block.
  void (*widen_blocks)(const e4m3* x, const std::uint8_t* exponents, float* y, std::int64_t n);
  void (*narrow_blocks)(const float* x, const RandomHalves& random, bool keeps_above_zero, e4m3* y,
                        std::uint8_t* exponents, std::int64_t n);
  /// Merges f32 numbers from their halves, and splits them (core/kernels/remainder.h).
  void (*merge)(const bf16* upper, const std::int16_t* remainder, float* y, std::int64_t n);
  void (*split)(const float* x, bf16* upper, std::int16_t* remainder, std::int64_t n);
  float (*absmax)(const float* x, std::int64_t n);
  /// Updates p, m and v in place.
  void (*adam)(float* p, const float* g, float* m, float* v, std::int64_t n,
               const AdamConstants& constants);
};

/// Rows that products fetch into L2 while they compute, for the work after them: a queue. No
/// processor prefetches short pieces of rows that are far apart by itself.
struct RowsAhead {
  struct Rows {
    const float* at;
    std::int64_t ld, count, n;  ///< `count` rows of n numbers
  };
  static constexpr unsigned kMost = 32;  ///< a power of two: the counters pass their limit
  Rows queue[kMost];                     ///< entries [first, end), each modulo kMost
  unsigned first = 0, end = 0;           ///< at most kMost entries
  std::int64_t row = 0;                  ///< how many rows of the first entry have been fetched
};

/// c (m, n) = a (m, k) b (k, n) + start, where a is stored with rows at distance lda, or with
/// trans_a its transpose is; rows of b and c have no gaps. start: null, or rows at distance
/// start_row: c itself to add to it, or one bias for all rows with start_row 0. Without a start,
/// start_row is 0.
struct BlockProduct {
  const float* a;
  std::int64_t lda;
  bool trans_a;
  const float* b;
  std::int64_t ldb;
  float* c;
  std::int64_t ldc, m, n, k;
  const float* start;
  std::int64_t start_row;
  RowsAhead* ahead = nullptr;  ///< null: nothing to fetch
};

/// The keys that each of sixteen queries sees: query i sees [first[i], stop[i]), all queries see
/// [all_begin, all_end), and none sees a key outside [begin, end).
struct LaneKeys {
  std::int64_t begin, all_begin, all_end, end;
  float first[16], stop[16];
};

/// Steps of attention. Scores are stored with one query per lane and one key per row; ld is the row
/// distance.
struct AttentionKernels {
  /// One step of the online softmax: x = exp(x - new maximum), 0 for masked keys. high, sum: the
  /// largest score and the sum of exponentials of each query so far; shrink: the factor by which
  /// earlier exponentials must be multiplied.
  void (*softmax_step)(float* x, std::int64_t ld, const LaneKeys& keys, float* high, float* sum,
                       float* shrink);
  /// x = exp(x - lse), 0 for masked keys.
  void (*probabilities)(float* x, std::int64_t ld, const LaneKeys& keys, const float* lse);
  /// dp = p (dp - delta) scale, 0 for masked keys.
  void (*scores_bwd)(const float* p, float* dp, std::int64_t ld, const LaneKeys& keys,
                     const float* delta, float scale);
  /// x *= factor.
  void (*scale)(float* x, std::int64_t n, float factor);
  /// out (d, n) = the transpose of x (n, d), times `scale`.
  void (*transpose)(const float* x, std::int64_t ld, std::int64_t n, std::int64_t d, float scale,
                    float* out, std::int64_t ld_out);
  void (*product)(const BlockProduct& product);
};

/// c (m, n) = a (m, k) b (k, n) + start, with b in panels of PanelKernels::columns columns: panel
/// after panel, one row of it for each p. start: null, or rows at distance start_row: c itself to
/// add to it, or one bias for all rows with start_row 0.
template <class T>
struct PanelProduct {
  const T* a;  ///< (m, k), rows lda apart; with trans_a its transpose (k, m)
  std::int64_t lda;
  bool trans_a = false;
  /// strips_size(m, k) elements, to which it packs a; of rows that meet packed panels, for one
  /// tile. Not null with trans_a.
  T* strips = nullptr;
  const T* b = nullptr;  ///< rows ldb apart, which the product packs; null: the panels are packed
  std::int64_t ldb = 0;
  T* panels;
  bool one_panel = false;  ///< panels of b are packed into the place of the first
  T* c;
  std::int64_t ldc, m, n, k;
  const T* start = nullptr;
  std::int64_t start_row = 0;
  std::int64_t l1_ways = 8;  ///< of the first data cache
  /// c is written past the caches, where it fills whole panels. Its rows begin at multiples of 64
  /// bytes.
  bool past_caches = false;
};

template <class T>
struct PanelKernels {
  bool fast;                   ///< false without fma in hardware: plain loops are faster
  std::int64_t rows, columns;  ///< of the largest tile; columns: of a panel
  bool packs_rows;             ///< strips of rows make tiles faster where many panels meet them
  void (*product)(const PanelProduct<T>& product);
  std::int64_t (*strips_size)(std::int64_t m, std::int64_t k);
  /// x (k, n) as one panel of up to `columns` columns: k elements for each of them.
  void (*pack_panel)(const T* x, std::int64_t ld, std::int64_t k, std::int64_t n, T* panel);
  /// The transpose of x (n, k) as panels.
  void (*pack_transposed)(const T* x, std::int64_t ld, std::int64_t n, std::int64_t k, T* panels);
};

/// One time step of one sequence.
struct RecurrentKernels {
  void (*gru)(const RecurrentStep<float>& step);
  void (*gru_bwd)(const RecurrentStepBwd<float>& step);
  void (*lstm)(const RecurrentStep<float>& step);
  void (*lstm_bwd)(const RecurrentStepBwd<float>& step);
};

/// Conversions to codes of e4m3 and e5m2, in bytes.
struct Fp8Kernels {
  /// y = x * scale, rounded to a code.
  void (*e4m3_of_f32)(const float* x, float scale, std::uint8_t* y, std::int64_t n);
  void (*e4m3_of_bf16)(const bf16* x, float scale, std::uint8_t* y, std::int64_t n);
  void (*e5m2_of_f32)(const float* x, float scale, std::uint8_t* y, std::int64_t n);
  void (*e5m2_of_bf16)(const bf16* x, float scale, std::uint8_t* y, std::int64_t n);
  /// The bits of the largest |x|; those of a NaN, if there is one, are above those of infinity.
  std::int32_t (*absmax_f32)(const float* x, std::int64_t n);
  std::int32_t (*absmax_bf16)(const bf16* x, std::int64_t n);
  /// y = table[q], the values of the 256 codes.
  void (*lookup)(const std::uint8_t* q, const float* table, float* y, std::int64_t n);

  template <class T>
  auto absmax() const {
    if constexpr (sizeof(T) == 4)
      return absmax_f32;
    else
      return absmax_bf16;
  }
  template <class T>
  auto codes(bool is_e5m2) const {
    if constexpr (sizeof(T) == 4)
      return is_e5m2 ? e5m2_of_f32 : e4m3_of_f32;
    else
      return is_e5m2 ? e5m2_of_bf16 : e4m3_of_bf16;
  }
};

/// Initial value of a list of the largest numbers.
inline constexpr float kTopFloor = -3.40282347e38f;

struct SimdTable {
  const char* name;
  OptimizerKernels optimizer;
  RowKernels<float> f32;
  RowKernels<bf16> bf16_;
  RowKernels<f16> f16_;
  AttentionKernels attention;
  PanelKernels<float> panels_f32;
  PanelKernels<double> panels_f64;
  RandomKernels random;
  RecurrentKernels recurrent;
  Fp8Kernels fp8;
  /// Merges n more numbers per lane into lists of the k largest so far, in descending order, ties
  /// by position. x is (n, 16), and row i has position first + i; values and places are (k, 16),
  /// with values initialised to kTopFloor. Returns false, with unusable lists, when a number is NaN
  /// or infinite.
  bool (*top_of_columns)(const float* x, std::int64_t n, std::int64_t first, std::int64_t k,
                         float* values, float* places);

  template <class T>
  const RowKernels<T>& of() const {
    if constexpr (std::is_same_v<T, float>)
      return f32;
    else if constexpr (std::is_same_v<T, bf16>)
      return bf16_;
    else
      return f16_;
  }
  template <class T>
  const PanelKernels<T>& panels() const {
    if constexpr (sizeof(T) == 4)
      return panels_f32;
    else
      return panels_f64;
  }
};

/// The row kernels of the widest instruction set that this CPU supports: avx512, avx2 or scalar.
const SimdTable& simd();

/// The table of that name, or null when this CPU cannot run it.
const SimdTable* find_simd(const char* name);

/// Selects the table that simd() returns, for tests and measurements.
/// Throws Error when this CPU cannot run it.
void set_simd(const char* name);

namespace detail {
extern const SimdTable simd_scalar, simd_avx2, simd_avx512;
}

}  // namespace weft
