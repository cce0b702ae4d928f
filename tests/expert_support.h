#pragma once
#include "weft/autograd/view.h"
#include "weft/distributed/parallelize.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/gpt.h"
#include "weft/nn/shard_spec.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::test {

/// The number of ranks and the parallel degrees.
struct Grid {
  int ranks;
  distributed::Degrees degrees;
};

/// Gives every rank and every layout the same weights.
inline nn::Gpt seeded(const nn::GptConfig& config, DType dtype) {
  nn::Gpt model(config);
  nn::init(model, 7);
  model.to(dtype);
  return model;
}

/// Shards the layers of a whole model over the ranks, including its experts.
inline distributed::Layout cut(nn::Gpt& model, distributed::DeviceMesh& mesh, bool sequence,
                               distributed::Dispatcher kind = distributed::Dispatcher::all_to_all) {
  distributed::Layout layout =
      parallelize(model, mesh, distributed::gpt_plan(model.config, {.sequence = sequence}));
  if (model.config.moe.experts > 0)
    for (auto& [name, l] :
         shard_experts(model, mesh, {.dispatcher = kind, .sequence_parallel = sequence}))
      layout[name] = std::move(l);
  return layout;
}

/// This rank's shard of a whole tensor.
inline Tensor part(const Tensor& whole, const nn::ShardSpec& p) {
  Tensor own = whole;
  for (const nn::ShardSpec::Cut& cut : p.cuts) {
    TensorList pieces;
    for (const auto& [begin, end] : cut.ranges)
      pieces.push_back(own.narrow(cut.axis, begin, end - begin));
    own = cat(pieces, cut.axis);
  }
  return own;
}

/// This rank's shard of a named tensor. A tensor without a layout is returned whole.
inline Tensor part(const Tensor& whole, const distributed::Layout& layout,
                   const std::string& name) {
  const auto found = layout.find(name);
  return found == layout.end() ? whole : part(whole, found->second.spec);
}

}  // namespace weft::test
