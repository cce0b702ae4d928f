#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "weft/data/dataset.h"
#include "weft/io/json.h"

namespace weft::data {

/// Training batches of a dataset, which has to outlive it: each epoch visits every row once, in an
/// order that depends on (seed, epoch) only. Row i of a global batch is the same for every number
/// of ranks and micro-batches; a batch may reach from one epoch into the next.
class Loader {
 public:
  struct Options {
    std::int64_t batch = 1;  ///< rows of the global batch
    std::uint64_t seed = 0;
  };
  /// Throws Error unless batch >= 1.
  Loader(const Dataset& dataset, const Options& options);

  const Dataset& dataset() const { return dataset_; }
  std::int64_t batch() const { return options_.batch; }

  /// Rows [first, first + count) of the current global batch: those of one rank.
  /// Throws Error when these are not rows of the batch, and where Dataset::rows() does.
  Batch rows(std::int64_t first, std::int64_t count);
  Batch rows() { return rows(0, options_.batch); }
  /// Goes on to the next global batch.
  void advance();
  /// rows(), then advance().
  Batch next(std::int64_t first, std::int64_t count);
  Batch next() { return next(0, options_.batch); }

  /// Where it stands, and what that belongs to.
  io::Json state() const;
  /// Throws Error when the state belongs to other data or another seed.
  void set_state(const io::Json& state);

 private:
  /// The number in the dataset of global row `row`, counted from the current batch.
  std::int64_t number_of(std::int64_t row);

  const Dataset& dataset_;
  Options options_;
  std::int64_t epoch_ = 0, index_ = 0;
  std::int64_t order_epoch_ = -1;  ///< the epoch that order_ belongs to
  std::vector<std::int64_t> order_;
};

/// All rows of a dataset, which has to outlive it, in order, for evaluation. Where targets are
/// integers the last batch is as large as the others: rows of zeros with targets kIgnore fill it.
class EvalLoader {
 public:
  /// Throws Error unless rows_per_batch >= 1.
  EvalLoader(const Dataset& dataset, std::int64_t rows_per_batch);
  std::int64_t batches() const;
  /// Throws Error unless 0 <= i < batches(), and where Dataset::rows() does.
  Batch batch(std::int64_t i) const;
  /// Rows of the dataset in it.
  std::int64_t rows_of(std::int64_t i) const {
    return std::min(batch_, dataset_.size() - i * batch_);
  }

 private:
  const Dataset& dataset_;
  std::int64_t batch_;
};

}  // namespace weft::data
