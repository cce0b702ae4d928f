#pragma once
#include <string>
#include <vector>

#include "weft/autograd/recurrent.h"
#include "weft/nn/module.h"
#include "weft/nn/packing.h"

namespace weft::nn {

struct RecurrentOptions {
  std::int64_t layers = 1;  ///< each reads the output of the one below it
  bool bias = true;
};

/// The weights of one layer of G gates (3 in a GRU, 4 in an LSTM).
struct RecurrentLayer {
  Tensor weight_ih;         // (G H, in)
  Tensor weight_hh;         // (G H, H)
  Tensor bias_ih, bias_hh;  // (G H), or null
};

/// What Gru and Lstm share: their layers, with the names and the initialisation of PyTorch
/// (weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, ...; uniform in +-1/sqrt(hidden)).
struct Recurrent : Module {
  RecurrentOptions options;
  std::int64_t input, hidden;
  std::vector<RecurrentLayer> layers;

  void visit(Visitor& v) override;
  /// Multiply-adds for one token.
  double multiply_adds() const;

 protected:
  Recurrent(const char* name, std::int64_t gates, std::int64_t input, std::int64_t hidden,
            const RecurrentOptions& options);
  std::string describe_as(const char* name) const;
  /// Throws Error unless x is (B, T, input), and the state has a first axis of `layers`.
  void check_call(const char* op, const Tensor& x, const Tensor& state) const;
  /// The part of a state (layers, sequences, H) that layer i starts from; null for none.
  Tensor state_of(const Tensor& state, std::size_t i) const;
};

/// Gated recurrent unit, PyTorch's nn.GRU(batch_first=True).
///
///   nn::Gru rnn(64, 128);
///   auto [y, state] = rnn(x);          // x (B, T, 64) -> y (B, T, 128), state (1, B, 128)
///   auto [y2, last] = rnn(x2, state);  // continues from `state`
///   auto [y3, ends] = rnn(row, {}, {.cu_seqlens = cu});  // documents in a row (1, tokens, 64)
///
/// The state is (layers, sequences, H): with a packing, sequence i is document i, and every
/// document starts from zeros or from its row of the given state. State f64 for f64, else f32.
/// Padding after the last token of a row changes its final state. Shapes, dtypes and memory: gru().
struct Gru : Recurrent {
  explicit Gru(std::int64_t input, std::int64_t hidden, const RecurrentOptions& options = {});
  GruOutput operator()(const Tensor& x, const Tensor& state = {},
                       const Packing& packing = {}) const;
  std::string describe() const override { return describe_as("Gru"); }
};

/// Long short-term memory, PyTorch's nn.LSTM(batch_first=True). As Gru, with a state of two
/// tensors:
///
///   auto [y, state] = rnn(x);          // state.h and state.c (layers, B, 128)
struct Lstm : Recurrent {
  explicit Lstm(std::int64_t input, std::int64_t hidden, const RecurrentOptions& options = {});
  LstmOutput operator()(const Tensor& x, const LstmState& state = {},
                        const Packing& packing = {}) const;
  std::string describe() const override { return describe_as("Lstm"); }
};

}  // namespace weft::nn
