#pragma once
#include "weft/autograd/elementwise.h"

namespace weft {

/// What stands between the two matrix products of an MLP, in the order of kActivations.
enum class Activation : std::uint8_t {
  gelu_tanh,
  gelu_erf,
  swiglu,
  geglu,
  relu2,
  relu,
  silu,
};

/// An activation: f(x), or f(gate) * up for rows [gate | up] of twice the width.
struct ActivationRow {
  Activation kind;
  const char* word;  ///< in flags and files
  bool gated;
  Tensor (*f)(const Tensor& x);  ///< of public ops, whose gradients are its slope

  /// The activation by public ops.
  Tensor composed(const Tensor& hidden) const;
};

/// Every activation. To add one, name it above and add its row.
inline constexpr ActivationRow kActivations[] = {
    {Activation::gelu_tanh, "gelu_tanh", false, [](const Tensor& x) { return gelu(x); }},
    {Activation::gelu_erf, "gelu_erf", false, [](const Tensor& x) { return gelu(x, Gelu::erf); }},
    {Activation::swiglu, "swiglu", true, [](const Tensor& x) { return silu(x); }},
    {Activation::geglu, "geglu", true, [](const Tensor& x) { return gelu(x); }},
    {Activation::relu2, "relu2", false, [](const Tensor& x) { return square(relu(x)); }},
    {Activation::relu, "relu", false, [](const Tensor& x) { return relu(x); }},
    {Activation::silu, "silu", false, [](const Tensor& x) { return silu(x); }},
};

/// The row of an activation. Throws Error for a value that has none.
const ActivationRow& row_of(Activation kind);
/// Whether the hidden layer has rows [gate | up].
inline bool is_gated(Activation kind) { return row_of(kind).gated; }

/// The activation of a hidden layer, in one op: f(hidden), or f(gate) * up for rows [gate | up].
///
/// Shapes   hidden (..., F), gated (..., 2F)  ->  (..., F)
/// Dtypes   f32, f64, bf16, f16
/// Device   cpu, cuda, meta
/// Saves    hidden
/// Throws   Error on another dtype; gated: a scalar or a last axis of odd length; swiglu is once
///          differentiable
/// Source   Hendrycks and Gimpel 2016, arXiv:1606.08415 (gelu, silu); Shazeer 2020,
///          arXiv:2002.05202 (swiglu, geglu with tanh GELU); So et al. 2021, arXiv:2109.08668
///          (relu2)
Tensor activation(const Tensor& hidden, Activation kind);

/// activation() with each row times its scale, as between the two products of an expert: see
/// scaled_swiglu().
///
/// Shapes   hidden (N, F), gated (N, 2F), scale (N)  ->  (N, F)
/// Dtypes   hidden f32, f64, bf16, f16; scale f32, or f64 for f64
/// Device   cpu, cuda, meta
/// Saves    hidden, scale
/// Throws   Error on wrong shapes, dtypes or devices; gelu and swiglu are once differentiable
/// Source   as activation()
Tensor scaled_activation(const Tensor& hidden, const Tensor& scale, Activation kind);

}  // namespace weft
