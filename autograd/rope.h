#pragma once
#include <vector>

#include "weft/core/tensor.h"

namespace weft {

/// How the frequencies of a model trained on short sequences change for longer ones.
/// linear: all are divided. llama3: the long waves are divided, the short ones kept, with a
/// transition between. yarn: the same with another transition; cos and sin are multiplied too.
/// Source: Chen et al. 2023, arXiv:2306.15595 (linear); Peng et al. 2023, arXiv:2309.00071 (yarn).
struct RopeScaling {
  enum class Kind : std::uint8_t { none, linear, llama3, yarn };
  Kind kind = Kind::none;
  double factor = 1;          ///< by which frequencies are divided
  std::int64_t original = 0;  ///< llama3, yarn: tokens of the sequences before
  double low = 1, high = 4;   ///< llama3: waves per `original` tokens where the transition is
  double beta_fast = 32, beta_slow = 1;  ///< yarn: the same
  double attention = 0;                  ///< yarn: factor of cos and sin; 0: from the next two
  /// yarn, with g(m) = 0.1 m ln(factor) + 1: cos and sin are multiplied by g(mscale) /
  /// g(mscale_all) if both are set, else by g(1); latent attention multiplies its scores by
  /// g(mscale_all)^2.
  double mscale = 0, mscale_all = 0;
  /// The factor of cos and sin.
  double table_factor() const;
  /// The factor of the scores of latent attention.
  /// Source: DeepSeek-AI 2024, arXiv:2412.19437, and its published model code.
  double score_factor() const;
};

/// The angle from one position to the next for each pair of elements of a head, head_dim / 2
/// numbers: theta^(-2 i / head_dim), scaled.
/// Throws Error on an odd head_dim, a theta that is not positive, or a scaling without its sizes.
std::vector<double> rope_frequencies(std::int64_t head_dim, double theta,
                                     const RopeScaling& scaling = {});

/// cos and sin (max_seq, head_dim / 2) of position * frequency.
struct RopeTables {
  Tensor cos, sin;
};
/// Angles are computed in f64 and rounded once to `dtype` (f32 or f64).
/// Throws Error as rope_frequencies(), and on a max_seq below 1.
RopeTables rope_tables(std::int64_t max_seq, std::int64_t head_dim, double theta = 10000,
                       DType dtype = DType::f32, const RopeScaling& scaling = {});

/// Rotary position embedding: rotates elements i and i + D / 2 of a head by the angle of the
/// token's position (the half-split form of GPT-NeoX and Llama).
///
/// Shapes   x (B, T, H, D), cos, sin (max_T, D / 2) -> (B, T, H, D). Token t has position
///          position_offset + t, or positions[t] of i32 (T) or (B, T) when given
/// Dtypes   x f32, f64, bf16, f16; tables f32 or f64; the rotation of bf16 is computed in f32
/// Device   cpu, cuda; all on one device
/// Saves    cos, sin, positions
/// Throws   Error on an x that is not 4-D, an odd D, tables or positions of wrong shape or dtype, a
///          position outside the tables
/// Source   Su et al. 2021, arXiv:2104.09864
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin,
            std::int64_t position_offset = 0);
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const Tensor& positions);

/// rope() on the first `heads` heads of each token: the query and key heads of a packed projection,
/// whose value heads stay unchanged. If `packed` is moved in and has no other handle, it is rotated
/// in place, and so is its gradient: no second buffer, and no pass over the values.
///
/// Shapes   packed (B, T, heads + more, D), cos, sin (max_T, D / 2) -> like packed. Token t has
///          position t, or positions[t] of i32 (T) or (B, T) unless null
/// Dtypes   as rope
/// Device   cpu, cuda; all on one device
/// Saves    cos, sin, positions
/// Throws   Error as rope, and on heads outside [0, axis 2 of packed]
/// Source   Su et al. 2021, arXiv:2104.09864
Tensor rope_packed(Tensor packed, std::int64_t heads, const Tensor& cos, const Tensor& sin,
                   const Tensor& positions = {});

}  // namespace weft
