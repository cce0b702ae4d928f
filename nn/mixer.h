#pragma once
#include <memory>

#include "weft/nn/kv_cache.h"
#include "weft/nn/token_context.h"

namespace weft::nn {

/// The part of a block in which tokens see each other: attention, or a layer in its place. A new
/// one is a file of its own and an entry in the table of nn/gpt_layers.cpp.
struct Mixer : Module {
  /// x (B, T, C) -> (B, T, C), causal.
  virtual Tensor operator()(const Tensor& x, const TokenContext& context = {}) const = 0;
  /// The member that it is of a block in state dictionaries: "attn".
  virtual const char* name() const = 0;
  /// Multiply-adds of forward for one token of a sequence of `tokens`, on average.
  virtual double multiply_adds(std::int64_t tokens) const = 0;
  /// A new one of the same configuration.
  virtual std::unique_ptr<Mixer> make_like() const = 0;
  /// What it keeps of the tokens that it has seen, with room for `capacity` of them.
  virtual KvCache::Entry cache_entry(std::int64_t batch, std::int64_t capacity, DType dtype,
                                     Device device) const = 0;
};

}  // namespace weft::nn
