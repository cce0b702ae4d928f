#include "weft/nn/embedding.h"

#include "weft/autograd/indexing.h"
#include "weft/core/error.h"

namespace weft::nn {

Embedding::Embedding(std::int64_t vocab, std::int64_t dim, const EmbeddingOptions& o)
    : init(o.init) {
  check(vocab > 0 && dim > 0, "embedding: vocab and dim must be at least 1, got {} and {}", vocab,
        dim);
  weight = make_parameter({vocab, dim}, init, o.dtype, o.device);
}

Tensor Embedding::operator()(const Tensor& ids) const {
  if (!shard) return embedding(weight, ids);
  Tensor y = shard->lookup ? shard->lookup(ids, weight) : embedding(weight, ids);
  return shard->leave ? shard->leave(std::move(y)) : y;
}

void Embedding::visit(Visitor& v) { v("weight", weight, init); }

std::string Embedding::describe() const {
  return message("Embedding({} rows of {})", weight.dim(0), weight.dim(1));
}

}  // namespace weft::nn
