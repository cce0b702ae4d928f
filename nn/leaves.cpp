#include "weft/nn/leaves.h"

#include <unordered_set>

#include "weft/core/error.h"

namespace weft::nn {

LeafReport compare_leaves(const Tape& tape, const Module& module) {
  const NamedTensors listed = module.named_parameters();
  const std::vector<Tensor> used = tape.leaves();
  std::unordered_set<const TensorImpl*> names, uses;
  for (const NamedTensor& p : listed) names.insert(p.tensor.impl());
  for (const Tensor& leaf : used) uses.insert(leaf.impl());
  LeafReport report;
  for (const Tensor& leaf : used)
    if (!names.contains(leaf.impl())) report.strangers.push_back(leaf);
  for (const NamedTensor& p : listed)
    if (p.tensor.requires_grad() && !uses.contains(p.tensor.impl()))
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
