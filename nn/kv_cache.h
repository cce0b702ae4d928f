#pragma once
#include <vector>

#include "weft/core/tensor.h"

namespace weft::nn {

struct GptConfig;

/// What each layer stores of past tokens, so that decoding one more token costs one token: keys and
/// values, or a recurrent state. clone() lets one text continue in two ways.
class KvCache {
 public:
  /// Keys and values, (B, capacity, Hkv, D) each.
  struct Pair {
    Tensor k, v;
  };
  /// A state of fixed size. `conv` may have no elements.
  struct Recurrent {
    Tensor conv, state;
  };
  /// The cache of one layer: `tokens` or `state`; the other is null.
  struct Entry {
    Pair tokens = {};
    Recurrent state = {};
  };

  /// Room for `capacity` tokens of `batch` sequences. Each layer's mixer defines its entry, with
  /// Mixer::cache_entry(); the second form is for models of your own.
  KvCache(const GptConfig& config, std::int64_t batch, std::int64_t capacity,
          DType dtype = DType::f32, Device device = kCpu);
  KvCache(std::vector<Entry> entries, std::int64_t batch, std::int64_t capacity,
          DType dtype = DType::f32, Device device = kCpu);
  KvCache(KvCache&&) = default;
  KvCache& operator=(KvCache&&) = default;

  /// A cache with the same tokens in memory of its own.
  KvCache clone() const;
  /// Throws Error unless new tokens `ids`, (B, T), fit, and it stores what a model with `weight` as
  /// its embedding computes. Changes nothing.
  void check_fits(const Tensor& ids, const Tensor& weight) const;

  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t batch() const { return batch_; }
  /// Whether some layer keeps a state, which can only drop all tokens or none.
  bool has_state() const;
  /// Drops the tokens from position `length` on.
  /// Throws Error if has_state() and some tokens would stay.
  void truncate(std::int64_t length);

  /// Appends k, v (B, T, Hkv, D) to one layer's tokens and returns all of them, (B, length + T,
  /// Hkv, D). Multi-head latent attention stores its latents (B, T, 1, kv_lora) as k and rotated
  /// keys (B, T, 1, rope) as v.
  Pair append(int layer, const Tensor& k, const Tensor& v);

  /// The state of a layer that keeps one. Of a gated delta layer: the inputs of its convolution
  /// that later tokens still read, (B, taps - 1, channels), and its delta state (B, Hv, K, V).
  const Recurrent& recurrent(int layer) const;
  /// Replaces the state after new tokens. A layer calls it once for each advance().
  void set_recurrent(int layer, const Recurrent& after);

  /// Counts T tokens as seen; call it after every layer has appended them.
  void advance(std::int64_t tokens);

 private:
  KvCache(const KvCache&) = default;
  void check_room(std::int64_t tokens) const;

  std::vector<Entry> entries_;
  std::int64_t batch_, capacity_, length_ = 0;
  DType dtype_;
  Device device_;
};

}  // namespace weft::nn
