#include "weft/data/dataset.h"

#include "weft/autograd/indexing.h"
#include "weft/core/error.h"

namespace weft::data {

Batch Batch::narrow(std::int64_t first, std::int64_t count) const {
  return {inputs.narrow(0, first, count), targets.narrow(0, first, count),
          positions.defined() ? positions.narrow(0, first, count) : positions};
}

TensorDataset::TensorDataset(const Tensor& inputs, const Tensor& targets) {
  check(inputs.defined() && targets.defined() && inputs.device().is_cpu() &&
            targets.device().is_cpu(),
        "tensor dataset: inputs and targets must be on the CPU");
  check(inputs.ndim() > 0 && targets.ndim() > 0 && inputs.dim(0) == targets.dim(0) &&
            inputs.dim(0) > 0,
        "tensor dataset: inputs and targets must have the same number of rows, at least 1, got "
        "shapes {} and "
        "{}",
        inputs.shape(), targets.shape());
  all_ = {inputs.detach().contiguous(), targets.detach().contiguous(), {}};
}

Batch TensorDataset::rows(std::span<const std::int64_t> numbers) const {
  const Tensor picked = Tensor::from(numbers, {static_cast<std::int64_t>(numbers.size())});
  return {index_select(all_.inputs, 0, picked), index_select(all_.targets, 0, picked), {}};
}

}  // namespace weft::data
