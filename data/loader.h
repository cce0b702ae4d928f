#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weft/data/dataset.h"
#include "weft/data/permutation.h"

namespace weft::io {
class Json;
}

namespace weft::data {

/// What happens to the rows at the end of an epoch that do not fill a batch.
enum class LastBatch : std::uint8_t {
  joined,   ///< they begin a batch that the next epoch fills
  dropped,  ///< they are left out; with shuffle, others in each epoch
  kept      ///< they are a smaller batch
};

/// Training batches of a dataset, which must outlive the loader. Each epoch visits every row once
/// (LastBatch::dropped omits the last ones), in an order that depends on (seed, epoch) and takes at
/// most 512 KiB of memory, however many rows there are. Row i of a global batch is the same for any
/// number of ranks and micro-batches.
///
///   data::TensorDataset examples(images, labels);
///   data::Loader loader(examples, {.batch = 32, .last = data::LastBatch::dropped});
///   while (loader.epoch() < 10) {
///     const data::Batch b = loader.next();
///     ...
///   }
class Loader {
 public:
  struct Options {
    std::int64_t batch = 1;  ///< rows of the global batch
    std::uint64_t seed = 0;
    LastBatch last = LastBatch::joined;
    bool shuffle = true;  ///< false, or Dataset::is_ordered(): every epoch in the dataset's order
  };
  /// Throws Error unless batch >= 1; with LastBatch::dropped the dataset must fill a batch.
  Loader(const Dataset& dataset, const Options& options);

  const Dataset& dataset() const { return dataset_; }
  std::int64_t batch() const { return options_.batch; }
  /// The epoch of the first row of the current batch, from 0.
  std::int64_t epoch() const { return epoch_; }
  /// The rows of the current batch: batch(), or fewer in the last one of LastBatch::kept.
  std::int64_t batch_rows() const;

  /// Rows [first, first + count) of the current global batch, such as those of one rank.
  /// Throws Error when the range is outside the batch, and where Dataset::rows() does.
  Batch rows(std::int64_t first, std::int64_t count);
  Batch rows() { return rows(0, batch_rows()); }
  /// Advances to the next global batch. Files begin to be read in the background for the rows of it
  /// that rows() has asked for last.
  void advance();
  /// rows(), then advance().
  Batch next(std::int64_t first, std::int64_t count);
  Batch next() { return next(0, batch_rows()); }

  /// The position, the identity and a checksum of the data that it belongs to, and what of them has
  /// been seen; weft/io/json.h has Json.
  io::Json state() const;
  /// Throws Error when the state belongs to other data, another seed or another order. With
  /// LastBatch::dropped a position with less than a batch left begins the next epoch.
  void set_state(const io::Json& state);
  /// The same as one line of text, for a program that saves it itself.
  std::string position() const;
  void set_position(const std::string& position);

 private:
  /// The dataset row of global row `row`, counted from the start of the current batch.
  std::int64_t dataset_row(std::int64_t row);
  std::vector<std::int64_t> dataset_rows(std::int64_t first, std::int64_t count);

  const Dataset& dataset_;
  Options options_;
  std::int64_t epoch_ = 0, index_ = 0;
  std::int64_t asked_first_ = 0, asked_count_ = 0;  ///< of the latest rows()
  std::uint32_t fingerprint_;
  std::int64_t order_epoch_ = -1;    ///< the epoch of the order below
  std::vector<std::int64_t> order_;  ///< of few rows
  std::optional<Permutation> many_;  ///< of more
};

/// All rows of a dataset, which must outlive the loader, in order, for evaluation. Where the
/// dataset allows padding, the last batch is as large as the others.
class EvalLoader {
 public:
  /// Throws Error unless rows_per_batch >= 1.
  EvalLoader(const Dataset& dataset, std::int64_t rows_per_batch);
  std::int64_t batches() const;
  /// Throws Error unless 0 <= i < batches(), and where Dataset::rows() does.
  Batch batch(std::int64_t i) const;
  std::int64_t rows() const { return dataset_.size(); }
  /// Number of dataset rows in batch i.
  std::int64_t rows_of(std::int64_t i) const {
    return std::min(batch_, dataset_.size() - i * batch_);
  }

 private:
  const Dataset& dataset_;
  std::int64_t batch_;
};

}  // namespace weft::data
