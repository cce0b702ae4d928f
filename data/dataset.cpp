#include "weft/data/dataset.h"

#include <algorithm>

#include "weft/autograd/indexing.h"
#include "weft/core/error.h"
#include "weft/io/crc32c.h"

namespace weft::data {
namespace {

std::uint32_t checksum_of(const Batch& rows) {
  std::uint32_t crc = 0;
  for (const Tensor& t : {rows.inputs, rows.targets, rows.positions}) {
    if (!t.defined()) continue;
    const Tensor values = t.is_contiguous() ? t : t.clone();
    const std::string type = message("{} {}", values.dtype(), values.shape());
    crc = io::crc32c(type.data(), type.size(), crc);
    if (values.numel() > 0)
      crc = io::crc32c(values.raw(),
                       static_cast<std::size_t>(values.numel()) * size_of(values.dtype()), crc);
  }
  return crc;
}

}  // namespace

std::uint32_t fingerprint(const Dataset& dataset) {
  constexpr std::int64_t kRows = 64;
  const std::int64_t size = dataset.size(), count = std::min(size, kRows);
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) {  // from the first row to the last
    const double at = static_cast<double>(i) * static_cast<double>(size - 1) /
                      static_cast<double>(std::max<std::int64_t>(count - 1, 1));
    numbers.push_back(std::min(static_cast<std::int64_t>(at), size - 1));
  }
  return count > 0 ? checksum_of(dataset.rows(numbers)) : 0;
}

Batch Batch::narrow(std::int64_t first, std::int64_t count) const {
  return {inputs.narrow(0, first, count), targets.narrow(0, first, count),
          positions.defined() ? positions.narrow(0, first, count) : positions, totals};
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
