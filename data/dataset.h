#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/tensor.h"

namespace weft::data {

/// Rows of a dataset: the first axis of both tensors counts them. Of tokens both are (rows, seq),
/// i32, and targets[i][t] is the token after inputs[i][t].
struct Batch {
  Tensor inputs;
  Tensor targets;
  /// (rows, seq) i32, on the CPU: the place of each token in its sequence, from 0, and -1 for
  /// padding. Null where a row is one sequence.
  Tensor positions = {};

  std::int64_t rows() const { return inputs.dim(0); }
  /// Rows [first, first + count), as views.
  Batch narrow(std::int64_t first, std::int64_t count) const;
  /// With inputs and targets on that device.
  Batch to(Device device) const { return {inputs.to(device), targets.to(device), positions}; }
};

/// A target of an integer type that counts for nothing.
inline constexpr std::int32_t kIgnore = -100;

/// What a model is trained on, by row number. Several threads may read one dataset at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Number of rows.
  virtual std::int64_t size() const = 0;
  /// These rows in this order, on the CPU. Throws Error on a number outside of [0, size()).
  virtual Batch rows(std::span<const std::int64_t> numbers) const = 0;
  /// What a position in this dataset is valid for, by name, as a checkpoint keeps it.
  virtual std::vector<std::pair<std::string, std::int64_t>> identity() const {
    return {{"rows", size()}};
  }
  /// Have the data been written to since they were opened? rows() then throws Error.
  virtual bool changed() const { return false; }
  /// Throws Error when they have.
  virtual void check_unchanged() const {}
};

/// Two CPU tensors with a row of each for each example.
///
///   data::TensorDataset train(images, labels);  // (n, 784) f32 and (n) i32
class TensorDataset : public Dataset {
 public:
  /// Throws Error unless both are on the CPU and have as many rows, at least one.
  TensorDataset(const Tensor& inputs, const Tensor& targets);
  std::int64_t size() const override { return all_.rows(); }
  Batch rows(std::span<const std::int64_t> numbers) const override;

 private:
  Batch all_;
};

}  // namespace weft::data
