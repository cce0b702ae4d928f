#pragma once
#include "weft/autograd/view.h"
#include "weft/distributed/parallelize.h"
#include "weft/distributed/shard_experts.h"
#include "weft/nn/gpt.h"
#include "weft/nn/part.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::test {

/// Ranks, and how they are used.
struct Grid {
  int ranks;
  distributed::Degrees degrees;
};

/// The same weights on every rank and in every layout.
inline nn::Gpt seeded(const nn::GptConfig& config, DType dtype) {
  nn::Gpt model(config);
  nn::init(model, 7);
  model.to(dtype);
  return model;
}

/// Cuts the layers of a whole model over the ranks, its experts too.
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

/// A rank's part of a whole.
inline Tensor part(const Tensor& whole, const nn::Part& p) {
  Tensor own = whole;
  for (const nn::Part::Cut& cut : p.cuts) {
    TensorList pieces;
    for (const auto& [begin, end] : cut.ranges)
      pieces.push_back(own.narrow(cut.axis, begin, end - begin));
    own = cat(pieces, cut.axis);
  }
  return own;
}

/// The same of a named tensor; of one that is not in the layout, all of it.
inline Tensor part(const Tensor& whole, const distributed::Layout& layout,
                   const std::string& name) {
  const auto found = layout.find(name);
  return found == layout.end() ? whole : part(whole, found->second.part);
}

}  // namespace weft::test
