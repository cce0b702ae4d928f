#pragma once
#include <string>

#include "weft/nn/dropout.h"
#include "weft/nn/module.h"
#include "weft/nn/shard.h"

namespace weft::nn {

struct LoraOptions;

/// scale b a, what an adapter adds to its rows of a weight.
Tensor lora_product(const Tensor& a, const Tensor& b, double scale);

/// The low-rank adapter of a Linear, or of some of its rows:  x -> scale (x a^T) b^T. b starts at
/// 0, so that a new adapter changes nothing. add_lora() makes them.
/// Source: Hu et al. 2021, arXiv:2106.09685.
struct Lora : Module {
  std::string part;  ///< the part of its Linear; empty: all rows
  double scale;
  bool merged = false;  ///< the Linear's weight includes it
  Init a_init;
  Dropout drop;
  Tensor a;  // (rank, in)
  Tensor b;  // (rows, rank)

  Lora(std::string part, std::int64_t in, std::int64_t rows, const LoraOptions& options,
       DType dtype, Device device);
  /// x (..., in) -> (..., rows)
  Tensor operator()(const Tensor& x) const;
  Tensor product() const { return lora_product(a, b, scale); }  // (rows, in)
  /// The name under which a Linear lists it: "lora", or "lora.q" of the part q.
  static std::string name_of(const std::string& part) {
    return part.empty() ? "lora" : "lora." + part;
  }
  void visit(Visitor& v) override;
  std::string describe() const override;
  unsigned shard_members() const override { return Shard::kProduct; }
};

}  // namespace weft::nn
