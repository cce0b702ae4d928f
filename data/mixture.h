#pragma once
#include <memory>
#include <string>
#include <vector>

#include "weft/data/dataset.h"

namespace weft::data {

/// Rows of several datasets, interleaved so that any first n rows hold each dataset's share of them
/// to within one row. Each dataset has epochs of its own: its rows come in an order that depends on
/// (seed, dataset, epoch), and start over when all have been seen. A mixture has no end and no
/// state: row i is the same for any batch size, any number of ranks, and after a resume.
///
///   data::Mixture mixture({{web, 0.7}, {books, 0.3}}, seed);  // shared_ptr to datasets
///   data::Loader loader(mixture, {.batch = 64});
class Mixture : public Dataset {
 public:
  struct Source {
    std::shared_ptr<const Dataset> data;
    double weight = 1;  ///< its share of the rows is this, divided by the sum over all sources
  };
  /// Shares are rounded to 1 / 65,536.
  /// Throws Error without a source, with more than 1,024, with a weight that is not finite and
  /// above 0, and with an empty dataset.
  explicit Mixture(std::vector<Source> sources, std::uint64_t seed = 0);

  /// How many rows before row `row` are of each source.
  std::vector<std::int64_t> counts(std::int64_t row) const;
  /// The share of a source, rounded.
  double share(std::size_t source) const;

  std::int64_t size() const override { return kEndless; }
  Batch rows(std::span<const std::int64_t> numbers) const override;
  void will_read(std::span<const std::int64_t> numbers) const override;
  bool is_ordered() const override { return true; }
  bool allows_padding() const override;
  /// Of each source its own identity, as "source_1_tokens", and its weight in 65,536ths.
  std::vector<std::pair<std::string, std::int64_t>> identity() const override;
  /// "source_1_rows", ...: the rows of each source.
  std::vector<std::pair<std::string, std::int64_t>> seen(std::int64_t row) const override;
  bool changed() const override;
  void check_unchanged() const override;

 private:
  static constexpr std::int64_t kEndless = std::int64_t{1} << 60;
  /// Rows repeat this pattern of sources.
  static constexpr std::int64_t kPattern = 1 << 16;
  struct Slot {
    std::uint32_t source;
    std::uint32_t before;  ///< slots of this source before this one in the pattern
  };

  /// Rows of one source, and where in a batch they belong.
  struct Wanted {
    std::vector<std::int64_t> numbers, places;
  };
  std::vector<Wanted> wanted(std::span<const std::int64_t> numbers) const;

  std::vector<Source> sources_;
  std::uint64_t seed_;
  std::vector<std::int64_t> slots_of_;  ///< per pattern
  std::vector<Slot> pattern_;
};

}  // namespace weft::data
