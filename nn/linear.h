#pragma once
#include "weft/autograd/fp8.h"
#include "weft/nn/lora_layer.h"
#include "weft/nn/module.h"
#include "weft/nn/shard.h"

namespace weft::nn {

struct LinearOptions {
  bool bias = true;
  DType dtype = default_dtype();
  Device device = default_device();
  std::optional<Init> init = {};  ///< of the weight; default: uniform in +-1/sqrt(in)
  bool in_fp8 = true;             ///< multiplies in FP8 where an fp8::Autocast asks for it
};

/// Rows of a packed weight that are a projection of their own.
struct LinearPart {
  std::string name;
  std::int64_t rows = 0;
};

/// y = x weight^T + bias:  x (..., in) -> (..., out). The bias starts at 0.
struct Linear : Module {
  Tensor weight;  // (out, in)
  Tensor bias;    // (out), or null
  Init init;
  bool in_fp8 = true;
  fp8::LayerState fp8_state;
  std::vector<LinearPart> parts;  ///< of a packed weight, in order; empty: one projection
  /// Added to the result; see add_lora(). In order of `parts`; with one, products are not in FP8.
  std::vector<Lora> lora;

  /// Has no weight yet, so that it can be tied: `head.weight = embed.weight`.
  Linear() = default;
  Linear(std::int64_t in, std::int64_t out, const LinearOptions& options = {});
  Tensor operator()(const Tensor& x) const;
  void visit(Visitor& v) override;
  std::string describe() const override;
  unsigned shard_members() const override {
    return Shard::kEnter | Shard::kLeave | Shard::kProduct;
  }
  /// Multiply-adds for one row of x.
  double multiply_adds() const { return static_cast<double>(weight.numel()); }
  /// Whether the result has more to it than the weight and the bias.
  bool is_adapted() const { return !lora.empty() && !lora[0].merged; }
  /// The weight with its adapters.
  Tensor adapted_weight() const;
  /// What the op that makes x rounds it for (fp8::ProducesFor); null if x is not multiplied in FP8
  /// as it is given.
  const fp8::LayerState* fp8_reader() const;

 private:
  /// How it rounds its operands to FP8; null: it does not.
  const fp8::Recipe* recipe() const;
  /// x weight^T + bias, in FP8 inside an fp8::Autocast.
  Tensor multiply(const Tensor& x, const Tensor& own_bias) const;
  /// The adapters' sum for an x.
  Tensor adaptation(const Tensor& x) const;
};

}  // namespace weft::nn
