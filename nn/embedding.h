#pragma once
#include "weft/nn/module.h"
#include "weft/nn/shard.h"

namespace weft::nn {

struct EmbeddingOptions {
  DType dtype = default_dtype();
  Device device = default_device();
  Init init = Init::normal(0.02);
};

/// Rows of a table selected by ids:  ids (...) i32 or i64 -> (..., dim).
struct Embedding : Module {
  Tensor weight;  // (vocab, dim)
  Init init;

  Embedding(std::int64_t vocab, std::int64_t dim, const EmbeddingOptions& options = {});
  Tensor operator()(const Tensor& ids) const;
  void visit(Visitor& v) override;
  std::string describe() const override;
  unsigned shard_members() const override { return Shard::kLookup | Shard::kLeave; }
  bool backward_reads_parameters() const override { return false; }
};

}  // namespace weft::nn
