#include "weft/data/dataset.h"

#include <algorithm>
#include <set>

#include "weft/autograd/indexing.h"
#include "weft/core/error.h"
#include "weft/io/crc32c.h"

namespace weft::data {
namespace {

std::uint32_t checksum_of(const Batch& rows) {
  std::uint32_t crc = 0;
  const auto add = [&crc](const Tensor& t) {
    if (!t.defined()) return;
    const Tensor values = t.is_contiguous() ? t : t.clone();
    const std::string type = message("{} {}", values.dtype(), values.shape());
    crc = io::crc32c(type.data(), type.size(), crc);
    if (values.numel() > 0)
      crc = io::crc32c(values.raw(),
                       static_cast<std::size_t>(values.numel()) * size_of(values.dtype()), crc);
  };
  for (const Tensor& t : {rows.inputs, rows.targets, rows.positions}) add(t);
  for (const NamedTensor& m : rows.more) {
    crc = io::crc32c(m.name.data(), m.name.size(), crc);
    add(m.tensor);
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
  const auto rows = [&](const Tensor& t) { return t.narrow(0, first, count); };
  return {rows(inputs), rows(targets), positions.defined() ? rows(positions) : positions, totals,
          each_tensor(more, rows)};
}

Batch Batch::to(Device device) const {
  const auto moved = [&](const Tensor& t) { return t.to(device); };
  return {inputs.to(device), targets.to(device), positions, totals, each_tensor(more, moved)};
}

const Tensor& Batch::at(std::string_view name) const {
  std::string names;
  for (const NamedTensor& m : more) {
    if (m.name == name) return m.tensor;
    names += (names.empty() ? "" : ", ") + m.name;
  }
  throw Error(
      message("batch: more must have a tensor '{}', got {}", name, names.empty() ? "none" : names));
}

TensorDataset::TensorDataset(const Tensor& inputs, const Tensor& targets,
                             const NamedTensors& more) {
  const auto on_cpu = [](const Tensor& t) { return t.defined() && t.device().is_cpu(); };
  check(on_cpu(inputs) && on_cpu(targets), "tensor dataset: inputs and targets must be on the CPU");
  check(inputs.ndim() > 0 && targets.ndim() > 0 && inputs.dim(0) == targets.dim(0) &&
            inputs.dim(0) > 0,
        "tensor dataset: inputs and targets must have the same number of rows, at least 1, got "
        "shapes {} and "
        "{}",
        inputs.shape(), targets.shape());
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : more) {
    check(!name.empty(), "tensor dataset: the names of more must not be empty");
    check(names.insert(name).second,
          "tensor dataset: the names of more must be different, got '{}' twice", name);
    check(on_cpu(tensor), "tensor dataset: '{}' must be on the CPU", name);
    check(tensor.ndim() > 0 && tensor.dim(0) == inputs.dim(0),
          "tensor dataset: '{}' must have {} rows as inputs, got shape {}", name, inputs.dim(0),
          tensor.shape());
  }
  const auto plain = [](const Tensor& t) { return t.detach().contiguous(); };
  all_ = {plain(inputs), plain(targets), {}, {}, each_tensor(more, plain)};
}

Batch TensorDataset::rows(std::span<const std::int64_t> numbers) const {
  const Tensor picked = Tensor::from(numbers, {static_cast<std::int64_t>(numbers.size())});
  const auto rows = [&](const Tensor& t) { return index_select(t, 0, picked); };
  return {rows(all_.inputs), rows(all_.targets), {}, {}, each_tensor(all_.more, rows)};
}

}  // namespace weft::data
