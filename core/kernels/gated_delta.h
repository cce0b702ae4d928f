#pragma once
#include "weft/core/kernels/sequences.h"
#include "weft/core/tensor.h"

namespace weft {

inline constexpr std::int64_t kDeltaChunk = 64;  ///< tokens that are worked on as matrices
inline constexpr std::int64_t kDeltaStep = 4;    ///< as when text is generated

/// Neighbouring tokens of one sequence, at most kDeltaChunk, counted through B * T.
struct DeltaChunk {
  std::int64_t sequence, first, count;
};

/// What the gated delta kernels compute; see autograd/gated_delta.h.
struct GatedDeltaSpec {
  Sequences all;
  std::int64_t tokens;  ///< B * T
  std::int64_t key_heads, value_heads, key_dim, value_dim;
  double scale;

  /// Chunks are numbered so that a sequence's are neighbours, whatever the other lengths are: with
  /// gaps, since the number of chunks depends on values.
  constexpr std::int64_t slots() const { return tokens / kDeltaChunk + all.count; }
  constexpr std::int64_t first_slot(std::int64_t sequence) const {
    return all.begin(sequence) / kDeltaChunk + sequence;
  }
  constexpr std::int64_t chunks(std::int64_t sequence) const {
    return (all.end(sequence) - all.begin(sequence) + kDeltaChunk - 1) / kDeltaChunk;
  }
  /// The chunk of a slot; its count is 0 or less in a gap.
  constexpr DeltaChunk chunk(std::int64_t slot) const {
    std::int64_t low = 0, high = all.count;
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (first_slot(middle) <= slot ? low : high) = middle;
    }
    const std::int64_t first = all.begin(low) + (slot - first_slot(low)) * kDeltaChunk;
    const std::int64_t left = all.end(low) - first;
    return {low, first, left < kDeltaChunk ? left : kDeltaChunk};
  }
  /// Numbers in a state of one head, (K, V).
  constexpr std::int64_t state_size() const { return key_dim * value_dim; }
};

/// q, k (B, T, Hk, K), v, y (B, T, Hv, V); g, beta (B, T, Hv), state (sequences, Hv, K, V; null:
/// 0), final and states in f64 for f64 and else f32. On the CPU q, k and v are f32 or f64. states
/// (slots, Hv, K, V): the state before each chunk; null on the CPU when nobody wants it, and on a
/// GPU for kDeltaStep tokens or fewer, which it then takes one by one. scratch: as many numbers as
/// the functions below say for each head of a sequence (CPU) or chunk (GPU).
using GatedDeltaFwdKernel = void(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                                 const Tensor& beta, const Tensor& state,
                                 const GatedDeltaSpec& spec, const Tensor& scratch,
                                 const Tensor& states, const Tensor& y, const Tensor& final);
/// dfinal may be null. dq, dk (B, T, Hv, K): one for each value head, in the dtype of g like dg and
/// dbeta; dv (B, T, Hv, V) like v. dstate (sequences, Hv, K, V) is always written.
using GatedDeltaBwdKernel = void(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                                 const Tensor& beta, const Tensor& states,
                                 const GatedDeltaSpec& spec, const Tensor& dy, const Tensor& dfinal,
                                 const Tensor& scratch, const Tensor& dq, const Tensor& dk,
                                 const Tensor& dv, const Tensor& dg, const Tensor& dbeta,
                                 const Tensor& dstate);

/// Scratch of one head of a sequence on the CPU: a few matrices of a chunk.
constexpr std::int64_t delta_fwd_scratch_cpu(const GatedDeltaSpec& s) {
  return kDeltaChunk * (2 * kDeltaChunk + s.key_dim + 2 * s.value_dim);
}
constexpr std::int64_t delta_bwd_scratch_cpu(const GatedDeltaSpec& s) {
  return kDeltaChunk * (6 * kDeltaChunk + 2 * s.key_dim + 4 * s.value_dim) + 2 * s.state_size();
}
/// Scratch of one head of a chunk on a GPU: W, X, and for the backward pass the inverse, dX, and
/// the gradient of the state behind the chunk.
constexpr std::int64_t delta_fwd_scratch_gpu(const GatedDeltaSpec& s) {
  return kDeltaChunk * (s.key_dim + s.value_dim);
}
constexpr std::int64_t delta_bwd_scratch_gpu(const GatedDeltaSpec& s) {
  return kDeltaChunk * (kDeltaChunk + s.key_dim + 3 * s.value_dim) + s.state_size();
}

namespace cpu {
GatedDeltaFwdKernel gated_delta_fwd;
GatedDeltaBwdKernel gated_delta_bwd;
}  // namespace cpu
namespace cuda {
GatedDeltaFwdKernel gated_delta_fwd;
GatedDeltaBwdKernel gated_delta_bwd;
}  // namespace cuda

}  // namespace weft
