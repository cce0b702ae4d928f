#include "weft/nn/leaves.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft::nn {

LeafReport compare_leaves(const Tape& tape, const Module& module) {
  const NamedTensors listed = module.named_parameters();
  const std::vector<Tensor> used = tape.leaves();
  LeafReport report;
  for (const Tensor& leaf : used)
    if (std::none_of(listed.begin(), listed.end(),
                     [&](const NamedTensor& p) { return p.tensor.same(leaf); }))
      report.strangers.push_back(leaf);
  for (const NamedTensor& p : listed)
    if (p.tensor.requires_grad() && std::none_of(used.begin(), used.end(), [&](const Tensor& leaf) {
          return leaf.same(p.tensor);
        }))
      report.unused.push_back(p.name);
  return report;
}

std::string LeafReport::text() const {
  if (!strangers.empty())
    return message(
        "a tensor of shape {} requires a gradient and was used, but visit() does not list it",
        strangers[0].shape());
  if (!unused.empty())
    return message("{} requires a gradient but no op on this tape used it", unused[0]);
  return "";
}

}  // namespace weft::nn
