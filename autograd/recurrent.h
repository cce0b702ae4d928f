#pragma once
#include "weft/core/tensor.h"

namespace weft {

/// States are (sequences, H): f64 for f64 operands, else f32. nn::Gru stacks its layers' states.
struct GruOptions {
  Tensor state = {};  ///< the initial h; null: zeros
  /// i32 (n + 1): sequence i is tokens [cu_seqlens[i], cu_seqlens[i + 1]) of a packed row, with its
  /// own state. Give it on the CPU: each call copies one on a GPU to the host.
  Tensor cu_seqlens = {};
};
struct GruOutput {
  Tensor y;
  Tensor state;  ///< h after the last token; after none, the initial state
};

struct LstmState {
  Tensor h, c;  ///< the hidden state, which is also the output, and the cell state
};
struct LstmOptions {
  LstmState state = {};    ///< the initial h and c, like that of gru(); both or none
  Tensor cu_seqlens = {};  ///< as for gru()
};
struct LstmOutput {
  Tensor y;
  LstmState state;  ///< h and c after the last token; after none, the initial state
};

/// The recurrence of a gated recurrent unit, over all time steps in one call. `gates` holds
/// x W_ih^T + b_ih with columns in the order r, z, n, as in the rows of weight_hh, so that the
/// product for all steps is one linear():
///
///   a = h weight_hh^T + bias_hh
///   r = sigmoid(gates_r + a_r);  z = sigmoid(gates_z + a_z);  n = tanh(gates_n + r a_n)
///   h = (1 - z) n + z h;  y = h
///
/// Shapes   gates (B, T, 3 H), weight_hh (3 H, H), bias_hh (3 H) or null -> (B, T, H)
///          sequences: B, or n with cu_seqlens, where B is 1
/// Dtypes   f32, f64, bf16, f16 (computed in f32); gates, weight and bias alike
///          states: f64 for f64, else f32
/// Device   cpu, cuda; all on one device
/// Saves    weight_hh, the initial state, y, and 4 H numbers for each token; f32 for bf16
/// Throws   Error on operands whose shapes, dtypes or devices do not match, cu_seqlens that do not
///          split the tokens of a row; once differentiable
/// Source   Cho et al. 2014, arXiv:1406.1078, in the form of Chung et al. 2014, arXiv:1412.3555
///          with the reset gate after the product, as in cuDNN
GruOutput gru(const Tensor& gates, const Tensor& weight_hh, const Tensor& bias_hh,
              const GruOptions& options = {});

/// The recurrence of a long short-term memory, over all time steps in one call. `gates` holds x
/// W_ih^T + b_ih with columns in the order i, f, g, o, as in the rows of weight_hh:
///
///   a = gates + h weight_hh^T + bias_hh
///   c = sigmoid(a_f) c + sigmoid(a_i) tanh(a_g);  h = sigmoid(a_o) tanh(c);  y = h
///
/// Shapes   gates (B, T, 4 H), weight_hh (4 H, H), bias_hh (4 H) or null -> (B, T, H)
///          sequences: B, or n with cu_seqlens, where B is 1
/// Dtypes   as gru
/// Device   cpu, cuda; all on one device
/// Saves    weight_hh, the initial state, y, and 5 H numbers for each token; f32 for bf16
/// Throws   Error as gru
/// Source   Hochreiter, Schmidhuber 1997; forget gate: Gers et al. 2000
LstmOutput lstm(const Tensor& gates, const Tensor& weight_hh, const Tensor& bias_hh,
                const LstmOptions& options = {});

}  // namespace weft
