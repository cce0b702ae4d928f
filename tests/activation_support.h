#pragma once
#include <array>

#include "weft/autograd/activation.h"
#include "weft/autograd/view.h"

namespace weft::test {

inline constexpr auto kEveryActivation = [] {
  std::array<Activation, std::size(kActivations)> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = kActivations[i].kind;
  return all;
}();

/// What an activation should compute, written apart from kActivations.
struct ActivationFormula {
  Activation kind;
  Tensor (*f)(const Tensor& x);
};
inline constexpr ActivationFormula kFormulas[] = {
    {Activation::gelu_tanh, [](const Tensor& x) { return gelu(x, Gelu::tanh); }},
    {Activation::gelu_erf, [](const Tensor& x) { return gelu(x, Gelu::erf); }},
    {Activation::swiglu, [](const Tensor& x) { return mul(x, sigmoid(x)); }},
    {Activation::geglu, [](const Tensor& x) { return gelu(x, Gelu::tanh); }},
    {Activation::relu2, [](const Tensor& x) { return mul(x, maximum(x, 0)); }},
    {Activation::relu, [](const Tensor& x) { return maximum(x, 0); }},
    {Activation::silu, [](const Tensor& x) { return mul(x, sigmoid(x)); }},
};

inline Tensor activation_by_parts(const Tensor& hidden, Activation kind) {
  for (const ActivationFormula& row : kFormulas) {
    if (row.kind != kind) continue;
    if (!is_gated(kind)) return row.f(hidden);
    const std::int64_t width = hidden.dim(-1) / 2;
    return mul(row.f(hidden.narrow(-1, 0, width)), hidden.narrow(-1, width, width));
  }
  return {};
}

/// The width of the hidden layer for `width` activated numbers.
inline std::int64_t hidden_width(Activation kind, std::int64_t width) {
  return is_gated(kind) ? 2 * width : width;
}

}  // namespace weft::test
