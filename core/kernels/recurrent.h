#pragma once
#include "weft/core/kernels/sequences.h"
#include "weft/core/tensor.h"

namespace weft {

enum class RecurrentKind : std::uint8_t { gru, lstm };

/// Sizes of the recurrent kernels; see autograd/recurrent.h.
struct RecurrentSpec {
  RecurrentKind kind;
  Sequences all;
  std::int64_t steps;  ///< tokens of the longest sequence
  std::int64_t units;  ///< H

  constexpr std::int64_t gates() const { return (kind == RecurrentKind::gru ? 3 : 4) * units; }
  /// What backward reads of each token: GruCell and LstmCell in recurrent_cell.h.
  constexpr std::int64_t saved() const { return (kind == RecurrentKind::gru ? 4 : 5) * units; }
  /// Scratch of each sequence: the product with the state, and the two states.
  constexpr std::int64_t scratch() const { return gates() + 2 * units; }
};

/// Size of the weight as the CPU kernels pack it: panels of up to 32 columns for either product.
constexpr std::int64_t recurrent_packed(const RecurrentSpec& s) {
  const auto panels = [](std::int64_t n) { return (n + 31) / 32 * 32; };
  const std::int64_t forward = panels(s.gates()) * s.units, backward = panels(s.units) * s.gates();
  return forward > backward ? forward : backward;
}

// All tensors are f32 or f64 and contiguous; tokens are numbered through B * T. Without a cell
// state (GRU) the tensors of c are null.

struct RecurrentFwdIn {
  const Tensor& gates;   ///< (B, T, gates)
  const Tensor& weight;  ///< (gates, H)
  const Tensor& bias;    ///< (gates); null: none
  const Tensor &h, &c;   ///< (sequences, H): the initial state; null: zeros
  Device device() const { return gates.device(); }
};
struct RecurrentFwdOut {
  const Tensor& saved;    ///< (B, T, saved); null: not needed
  const Tensor& y;        ///< (B, T, H)
  const Tensor &h, &c;    ///< (sequences, H): the final state
  const Tensor& scratch;  ///< (sequences, scratch)
  const Tensor& packed;   ///< scratch: recurrent_packed() elements; null on a GPU
};
struct RecurrentBwdIn {
  const Tensor &weight, &saved, &y;
  const Tensor &h, &c;         ///< the initial state; null: zeros
  const Tensor &dy, &dh, &dc;  ///< of y and the final state; null: zeros
  Device device() const { return weight.device(); }
};
struct RecurrentBwdOut {
  const Tensor& dgates;    ///< (B, T, gates)
  const Tensor& dhidden;   ///< of the product with the state; null: equal to dgates
  const Tensor& previous;  ///< (B, T, H): the state before each token
  const Tensor &dh, &dc;   ///< (sequences, H): of the initial state
  const Tensor &scratch, &packed;
};
using RecurrentFwdKernel = void(const RecurrentFwdIn& in, const RecurrentSpec& spec,
                                const RecurrentFwdOut& out);
using RecurrentBwdKernel = void(const RecurrentBwdIn& in, const RecurrentSpec& spec,
                                const RecurrentBwdOut& out);

namespace cpu {
RecurrentFwdKernel recurrent_fwd;
RecurrentBwdKernel recurrent_bwd;
}  // namespace cpu
namespace cuda {
RecurrentFwdKernel recurrent_fwd;
RecurrentBwdKernel recurrent_bwd;
}  // namespace cuda

}  // namespace weft
