#include <algorithm>

#include "weft/core/error.h"
#include "weft/train/train_step.h"

namespace weft::train {

data::Batch TrainStep::load_rows(const data::Batch& rows) {
  const auto alike = [](const Tensor& a, const Tensor& b) {
    return a.defined() && a.shape() == b.shape() && a.dtype() == b.dtype();
  };
  if (!device_.is_gpu()) return rows.to(device_);
  const auto same = [&](const NamedTensor& a, const NamedTensor& b) {
    return a.name == b.name && alike(a.tensor, b.tensor);
  };
  const bool fits = alike(on_gpu_.inputs, rows.inputs) && alike(on_gpu_.targets, rows.targets) &&
                    std::equal(on_gpu_.more.begin(), on_gpu_.more.end(), rows.more.begin(),
                               rows.more.end(), same);
  check(!captured_ || (fits && !rows.positions.defined()),
        "train step: a graph needs batches of one shape, without positions");
  if (!fits) {
    const auto place = [&](const Tensor& t) {
      return Tensor::empty(t.shape(), t.dtype(), device_);
    };
    on_gpu_ = {
        place(rows.inputs), place(rows.targets), {}, {}, data::each_tensor(rows.more, place)};
  }
  if (!device_.is_meta()) {
    on_gpu_.inputs.copy_(rows.inputs);
    on_gpu_.targets.copy_(rows.targets);
    for (std::size_t i = 0; i < rows.more.size(); ++i)
      on_gpu_.more[i].tensor.copy_(rows.more[i].tensor);
  }
  on_gpu_.positions = rows.positions;
  return on_gpu_;
}

Tensor TrainStep::totals(const data::Batch& rows) const {
  const Tensor own = task_.totals ? task_.totals(rows) : Tensor();
  if (!own.defined()) return own;
  check(!options_.machine.graph,
        "train step: a graph would replay the totals of its first step; use --graph off");
  const Tensor all = own.to(device_).clone();
  if (ranks_.size() == 1) return all;
  if (!ranks_.counts_rows()) all.zero_();
  ranks_.add_up(all);
  return all;
}

}  // namespace weft::train
