#pragma once
#include <vector>

#include "weft/core/tensor.h"

namespace weft::nn {

struct GptConfig;

/// What the layers of a model keep of the tokens it has already seen, so that decoding one more
/// token costs one token: keys and values, or a state.
class KvCache {
 public:
  /// (B, capacity, Hkv, D) each.
  struct Pair {
    Tensor k, v;
  };
  /// (B, taps - 1, channels), and (B, Hv, K, V).
  struct Recurrent {
    Tensor conv, state;
  };
  /// What one layer keeps: numbers of each token, or a state. The other is null.
  struct Entry {
    Pair tokens = {};
    Recurrent state = {};
  };

  /// Room for `capacity` tokens of `batch` sequences. Each layer's mixer says what it keeps.
  KvCache(const GptConfig& config, std::int64_t batch, std::int64_t capacity,
          DType dtype = DType::f32, Device device = kCpu);

  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t batch() const { return batch_; }
  /// Forgets the tokens from position `length` on.
  /// Throws Error when the model has layers with a state, which forget all tokens or none.
  void truncate(std::int64_t length);

  /// Writes k, v (B, T, Hkv, D) of one layer behind the tokens already there, and returns all of
  /// them, (B, length + T, Hkv, D). Multi-head latent attention keeps other things: its latents
  /// (B, T, 1, kv_lora) as k, and rotated keys (B, T, 1, rope) as v.
  Pair append(int layer, const Tensor& k, const Tensor& v);

  /// What a gated delta layer remembers: the inputs of its convolution that later tokens still see,
  /// (B, taps - 1, channels), and its state (B, Hv, K, V).
  const Recurrent& recurrent(int layer) const;
  /// Replaces it by what it is behind new tokens. A layer does so once for each advance().
  void set_recurrent(int layer, const Recurrent& after);

  /// Counts T tokens as seen, after every layer has appended them.
  void advance(std::int64_t tokens);

 private:
  std::vector<Entry> entries_;
  std::int64_t batch_, capacity_, length_ = 0;
};

}  // namespace weft::nn
