#pragma once
// Small models, and tokens for them.
#include <cstdint>
#include <string>

#include "weft/core/random.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::gpt_test {
using nn::Arch;
using nn::Gpt;
using nn::GptConfig;

inline GptConfig small(Arch arch) {
  return {.arch = arch, .layers = 2, .heads = 4, .kv_heads = 2, .dim = 32, .seq = 12, .vocab = 19};
}

inline Tensor tokens(std::int64_t batch, std::int64_t length, std::uint64_t seed = 1) {
  const Tensor t = Tensor::empty({batch, length}, DType::f64);
  uniform_(t, {seed, 9, 0}, 0, 19);
  return t.to(DType::i32);
}

// Weights large enough that positions, windows and masks all affect the logits.
inline Gpt make(const GptConfig& config, DType dtype = DType::f64) {
  Gpt model(config);
  model.to(dtype);
  std::uint64_t seed = 40;
  for (const NamedTensor& p : model.named_parameters()) {
    const bool norm = p.name.find("norm") != std::string::npos && p.name.ends_with("weight");
    const double std = p.tensor.ndim() == 2 ? 0.25 : 0.1;
    normal_(p.tensor, {seed++, 1, 0}, norm ? 1 : 0, std);
  }
  return model;
}

}  // namespace weft::gpt_test
