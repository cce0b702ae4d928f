#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/named_tensor.h"

namespace weft::data {

/// Rows of a dataset, along the first axis of its tensors. For tokens inputs and targets are (rows,
/// seq), i32, and targets[i][t] is the token after inputs[i][t].
struct Batch {
  Tensor inputs;
  Tensor targets;
  /// (rows, seq) i32, on the CPU: the place of each token in its sequence, from 0, and -1 for
  /// padding. Null where a row is one sequence.
  Tensor positions = {};
  /// What train::Task::totals counted in all rows of the step, of all ranks; null: nothing, as in
  /// evaluation.
  Tensor totals = {};
  /// Further tensors with one row per example, such as a second input or a mask. Every batch of a
  /// dataset has the same names in the same order.
  NamedTensors more = {};

  /// The tensor of that name in `more`.
  /// Throws Error if there is none.
  const Tensor& at(std::string_view name) const;
  std::int64_t rows() const { return inputs.dim(0); }
  std::int64_t targets_per_row() const { return targets.numel() / targets.dim(0); }
  /// Rows [first, first + count), as views.
  Batch narrow(std::int64_t first, std::int64_t count) const;
  /// With inputs, targets and more on that device.
  Batch to(Device device) const;
};

/// The same names with f(tensor) of each.
template <class F>
NamedTensors each_tensor(NamedTensors tensors, F&& f) {
  for (NamedTensor& t : tensors) t.tensor = f(t.tensor);
  return tensors;
}

/// A target of an integer type that the loss ignores.
inline constexpr std::int32_t kIgnore = -100;

/// Training data by row number. All rows have one shape. Several threads may read one dataset
/// concurrently.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Number of rows.
  virtual std::int64_t size() const = 0;
  /// The given rows in the given order, on the CPU.
  /// Throws Error on a number outside [0, size()).
  virtual Batch rows(std::span<const std::int64_t> numbers) const = 0;
  /// Says that rows() will be asked for these rows soon, so that files can be read in the
  /// background.
  virtual void will_read(std::span<const std::int64_t>) const {}
  /// Whether rows of zeros with targets kIgnore may fill the last batch of an evaluation; `more`
  /// has zeros there too.
  virtual bool allows_padding() const { return false; }
  /// The properties of the data that a saved position depends on, by name, for checkpoints.
  virtual std::vector<std::pair<std::string, std::int64_t>> identity() const {
    return {{"rows", size()}};
  }
  /// Whether the order of the rows is a part of the data, so that a loader must not shuffle them.
  virtual bool is_ordered() const { return false; }
  /// What the first `row` rows held, by name, for the reader of a checkpoint.
  virtual std::vector<std::pair<std::string, std::int64_t>> seen(std::int64_t) const { return {}; }
  /// Whether the data have been written since they were opened; rows() then throws Error.
  virtual bool changed() const { return false; }
  /// Throws Error if changed().
  virtual void check_unchanged() const {}
};

/// A checksum of up to 64 rows spread over all of a dataset. Data that differ in one place only may
/// have the same, but files of other contents, order or tokenizers do not. 0 without rows.
std::uint32_t fingerprint(const Dataset& dataset);

/// Examples given as CPU tensors with one row per example.
///
///   data::TensorDataset train(images, labels);  // (n, 784) f32 and (n) i32
///   data::TensorDataset more(images, labels, {{"text", ids}, {"mask", mask}});
class TensorDataset : public Dataset {
 public:
  /// Throws Error unless all are on the CPU and have the same number of rows, at least one, and the
  /// names of `more` are different and not empty.
  TensorDataset(const Tensor& inputs, const Tensor& targets, const NamedTensors& more = {});
  std::int64_t size() const override { return all_.rows(); }
  Batch rows(std::span<const std::int64_t> numbers) const override;

 private:
  Batch all_;
};

}  // namespace weft::data
