#pragma once
#include <memory>

#include "weft/autograd/fp8.h"
#include "weft/nn/kv_cache.h"
#include "weft/nn/module.h"
#include "weft/nn/token_context.h"

namespace weft::nn {

/// The part of a block that mixes tokens: attention, or a layer in place of it. To add one, write
/// its own file and add a line to the table in nn/gpt_layers.cpp.
struct Mixer : Module {
  /// What of a TokenContext mix() handles besides whole rows and one cache for all of them.
  struct Handles {
    bool packing = false;  ///< several sequences in a row
    bool rows = false;     ///< a cache for each row; otherwise mix() gets one row at a time
    bool part = false;     ///< a part of the batch's tokens on this rank, see TokenContext::part
    bool mask = false;     ///< TokenContext::mask
  };

  /// x (B, T, C) -> (B, T, C). Causal, but for Attention with causal = false.
  /// Throws Error on packed rows, a part of the tokens and a mask, unless handles() includes them.
  Tensor operator()(const Tensor& x, const TokenContext& context = {}) const;
  virtual Handles handles() const { return {}; }
  /// Its member name inside a block, as in state dictionaries: "attn".
  virtual const char* name() const = 0;
  /// The layer that first multiplies x in FP8, as it is given: see Linear::fp8_reader().
  virtual const fp8::LayerState* fp8_reader() const { return nullptr; }
  /// Multiply-adds of forward for one token of a sequence of `tokens`, on average.
  virtual double multiply_adds(std::int64_t tokens) const = 0;
  /// An empty cache entry of this layer, with room for `capacity` tokens.
  /// Throws Error, unless it is overridden: the layer cannot decode with a cache.
  virtual KvCache::Entry cache_entry(std::int64_t batch, std::int64_t capacity, DType dtype,
                                     Device device) const;

 protected:
  /// What operator() computes, with a context that handles() allows.
  virtual Tensor mix(const Tensor& x, const TokenContext& context) const = 0;
};

}  // namespace weft::nn
