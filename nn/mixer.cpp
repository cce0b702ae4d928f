#include "weft/nn/mixer.h"

#include "weft/core/error.h"
#include "weft/nn/each_row.h"

namespace weft::nn {

Tensor Mixer::operator()(const Tensor& x, const TokenContext& context) const {
  check(x.ndim() == 3, "{}: x must have shape (batch, tokens, dim), got {}", name(), x.shape());
  const Handles can = handles();
  check(can.packing || !context.packing, "{}: a row must be one sequence, got packed rows", name());
  check(can.part || !context.part,
        "{}: each rank must have all tokens of its sequences, got a part of them", name());
  check(!context.packing || !context.has_cache(), "{}: a packed row cannot go with a cache",
        name());
  if (context.mask.defined()) {
    check(can.mask, "{}: mask must be null for this layer, got {}", name(), context.mask.shape());
    check(!context.packing && !context.has_cache(),
          "{}: a mask cannot go with packed rows or a cache", name());
  }
  if (context.rows.empty() || can.rows) return mix(x, context);
  return each_row(x, context,
                  [this](const Tensor& row, const TokenContext& own) { return mix(row, own); });
}

KvCache::Entry Mixer::cache_entry(std::int64_t, std::int64_t, DType, Device) const {
  throw Error(message("{}: a layer that decodes with a cache must override cache_entry()", name()));
}

}  // namespace weft::nn
