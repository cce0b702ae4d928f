#pragma once
#include "weft/core/kernels/sequences.h"
#include "weft/core/tensor.h"

namespace weft {

inline constexpr std::int64_t kDeltaChunk = 64;  ///< tokens processed as matrices
inline constexpr std::int64_t kDeltaStep = 4;    ///< tokens per call while text is generated

/// The logarithm of a decay that is 0 in every dtype. A smaller g, down to -infinity, counts as
/// this one: beside a larger number sums of g would lose the g of other tokens.
inline constexpr double kDeltaReset = -800;
template <class T>
constexpr double delta_log_decay(T g) {
  return static_cast<double>(g) < kDeltaReset ? kDeltaReset : static_cast<double>(g);
}

/// Neighbouring tokens of one sequence, at most kDeltaChunk, numbered through B * T.
struct DeltaChunk {
  std::int64_t sequence, first, count;
};

/// Sizes and options of the gated delta kernels; see autograd/gated_delta.h.
struct GatedDeltaSpec {
  Sequences all;
  std::int64_t tokens;  ///< B * T
  std::int64_t key_heads, value_heads, key_dim, value_dim;
  double scale;

  /// The chunks of a sequence have adjacent slots. Some slots stay empty: the number of chunks
  /// depends on values of cu_seqlens, which a GPU does not copy to the host.
  constexpr std::int64_t slots() const { return tokens / kDeltaChunk + all.count; }
  constexpr std::int64_t first_slot(std::int64_t sequence) const {
    return all.begin(sequence) / kDeltaChunk + sequence;
  }
  constexpr std::int64_t chunks(std::int64_t sequence) const {
    return (all.end(sequence) - all.begin(sequence) + kDeltaChunk - 1) / kDeltaChunk;
  }
  /// The chunk of a slot; its count is 0 or less for an empty slot.
  constexpr DeltaChunk chunk(std::int64_t slot) const {
    const std::int64_t i =
        last_at_most(all.count, slot, [&](std::int64_t n) { return first_slot(n); });
    const std::int64_t first = all.begin(i) + (slot - first_slot(i)) * kDeltaChunk;
    const std::int64_t left = all.end(i) - first;
    return {i, first, left < kDeltaChunk ? left : kDeltaChunk};
  }
  /// Elements in the state of one head, (K, V).
  constexpr std::int64_t state_size() const { return key_dim * value_dim; }
};

// "real" is f64 for f64 tensors, else f32. q, k, v, y and their gradients are f32 or f64, on a GPU
// also bf16. scratch (real): the functions below return the elements per head of a sequence (CPU)
// or of a chunk (GPU).

struct GatedDeltaFwdIn {
  const Tensor &q, &k;     ///< (B, T, Hk, K)
  const Tensor& v;         ///< (B, T, Hv, V)
  const Tensor &g, &beta;  ///< (B, T, Hv), real
  const Tensor& state;     ///< (sequences, Hv, K, V), real; null: zeros
  Device device() const { return q.device(); }
};
struct GatedDeltaFwdOut {
  /// (slots, Hv, K, V), real: the state before each chunk. Null on the CPU when no backward pass
  /// reads it, and on a GPU for at most kDeltaStep tokens, which it then processes one by one.
  const Tensor& states;
  const Tensor& y;      ///< like v
  const Tensor& final;  ///< (sequences, Hv, K, V), real
  const Tensor& scratch;
};
struct GatedDeltaBwdIn {
  const Tensor &q, &k, &v, &g, &beta, &states;
  const Tensor& dy;
  const Tensor& dfinal;  ///< null: zeros
  Device device() const { return q.device(); }
};
struct GatedDeltaBwdOut {
  const Tensor &dq, &dk;  ///< (B, T, Hv, K), real: one per value head
  const Tensor& dv;       ///< like v
  const Tensor &dg, &dbeta;
  const Tensor& dstate;  ///< (sequences, Hv, K, V), real; never null
  const Tensor& scratch;
};
using GatedDeltaFwdKernel = void(const GatedDeltaFwdIn& in, const GatedDeltaSpec& spec,
                                 const GatedDeltaFwdOut& out);
using GatedDeltaBwdKernel = void(const GatedDeltaBwdIn& in, const GatedDeltaSpec& spec,
                                 const GatedDeltaBwdOut& out);

/// Scratch of one head of a sequence on the CPU: a few chunk matrices.
constexpr std::int64_t delta_fwd_scratch_cpu(const GatedDeltaSpec& s) {
  return kDeltaChunk * (2 * kDeltaChunk + s.key_dim + 2 * s.value_dim);
}
constexpr std::int64_t delta_bwd_scratch_cpu(const GatedDeltaSpec& s) {
  return kDeltaChunk * (6 * kDeltaChunk + 2 * s.key_dim + 4 * s.value_dim) + 2 * s.state_size();
}
/// Scratch of one head of a chunk on a GPU: W, X, and for the backward pass the inverse, dX, and
/// the gradient of the state after the chunk.
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
