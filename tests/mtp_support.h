#pragma once
// Helpers shared by the tests of multi-token prediction.
#include <string>
#include <vector>

#include "weft/autograd/tape.h"
#include "weft/nn/gpt.h"
#include "weft/tests/support.h"

namespace weft::mtp_test {

using nn::Arch;
using nn::Gpt;
using nn::GptConfig;
using nn::Packing;

inline constexpr std::int64_t kVocab = 19;

inline GptConfig small(Arch arch, std::int64_t depths, std::int64_t seq = 8) {
  return {.arch = arch,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .dim = 16,
          .seq = seq,
          .vocab = kVocab,
          .mtp = {.depths = depths}};
}

// Weights large enough that a wrong position, token or scale shows. Parameters of the same name get
// the same values.
inline Gpt make(const GptConfig& config, DType dtype = DType::f64) {
  Gpt model(config);
  model.to(dtype);
  for (const NamedTensor& p : model.named_parameters()) {
    const bool norm = p.name.find("norm") != std::string::npos && p.name.ends_with("weight");
    normal_(p.tensor, {7, stream_of(p.name), 0}, norm ? 1 : 0, p.tensor.ndim() == 2 ? 0.25 : 0.1);
  }
  return model;
}

inline Tensor tokens(const Shape& shape, std::uint64_t seed) {
  return Tensor(uniform_(Tensor::empty(shape, DType::f64), {seed, 9, 0}, 0, kVocab)).to(DType::i32);
}

inline Tensor row(const std::vector<std::int32_t>& values) {
  return Tensor::from<std::int32_t>(values, {1, static_cast<std::int64_t>(values.size())});
}

inline Packing packing_of(const std::vector<std::int32_t>& bounds) {
  return Packing::of(bounds, 8);
}

inline NamedTensors gradients_of(Gpt& model) {
  NamedTensors out;
  for (const NamedTensor& p : model.named_parameters())
    out.push_back({p.name, p.tensor.grad().defined() ? p.tensor.grad() : zeros_like(p.tensor)});
  model.zero_grad();
  return out;
}

template <class F>
inline NamedTensors gradients(Gpt& model, F&& total) {
  Tape tape;
  Tensor(total()).backward();
  return gradients_of(model);
}

// The first name in `want` whose gradient is missing or differs by more than `tol`.
inline std::string apart(const NamedTensors& got, const NamedTensors& want, double tol) {
  for (const NamedTensor& w : want) {
    std::string why = "not there";
    for (const NamedTensor& g : got)
      if (g.name == w.name) why = test::mismatch(g.tensor, w.tensor, tol);
    if (!why.empty()) return w.name + ": " + why;
  }
  return "";
}

}  // namespace weft::mtp_test
