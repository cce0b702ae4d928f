#pragma once
#include <vector>

#include "weft/core/tensor.h"

namespace weft::nn {

struct GptConfig;

/// Keys and values of the tokens a model has already seen, so that decoding one more token costs
/// one token.
class KvCache {
 public:
  /// Room for `capacity` tokens of `batch` sequences.
  KvCache(const GptConfig& config, std::int64_t batch, std::int64_t capacity,
          DType dtype = DType::f32, Device device = kCpu);

  std::int64_t length() const { return length_; }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t batch() const { return batch_; }
  /// Forgets the tokens from position `length` on.
  void truncate(std::int64_t length);

  /// Writes k, v (B, T, Hkv, D) of one layer behind the tokens already there, and returns all of
  /// them, (B, length + T, Hkv, D).
  struct Pair {
    Tensor k, v;
  };
  Pair append(int layer, const Tensor& k, const Tensor& v);
  /// Counts T tokens as seen, after every layer has appended them.
  void advance(std::int64_t tokens);

 private:
  std::vector<Pair> layers_;  ///< (B, capacity, Hkv, D) each
  std::int64_t batch_, capacity_, length_ = 0;
};

}  // namespace weft::nn
