#include "weft/data/loader.h"

#include <algorithm>
#include <numeric>

#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/io/json.h"

namespace weft::data {
namespace {

// An order of so many rows is a table, drawn like any random order; beyond that it is a
// Permutation, which needs no memory. One that has 512 KiB costs nothing, and earlier versions had
// a table for any number: runs of theirs on less data go on.
constexpr std::int64_t kTableRows = 1 << 16;
constexpr std::int64_t kMaxEpochs = UINT32_MAX;  // the key of an epoch's order has 32 bits for it

Tensor padded(const Tensor& t, std::int64_t rows, double value) {
  Shape shape = t.shape();
  shape[0] = rows;
  const Tensor out = Tensor::full(shape, value, t.dtype());
  out.narrow(0, 0, t.dim(0)).copy_(t);
  return out;
}

}  // namespace

Loader::Loader(const Dataset& dataset, const Options& options)
    : dataset_(dataset), options_(options) {
  check(options.batch >= 1, "loader: batch must be at least 1, got {}", options.batch);
  check(dataset.size() >= 1, "loader: the dataset must have at least 1 row, got {}",
        dataset.size());
  check(options.last != LastBatch::dropped || options.batch <= dataset.size(),
        "loader: batch must be at most the {} rows of the dataset if the last batch is dropped, "
        "got {}",
        dataset.size(), options.batch);
  if (dataset.is_ordered()) options_.shuffle = false;
  // Now, since data that change later cannot be read, but the position can still be saved.
  fingerprint_ = fingerprint(dataset);
}

std::int64_t Loader::batch_rows() const {
  return options_.last == LastBatch::kept ? std::min(options_.batch, dataset_.size() - index_)
                                          : options_.batch;
}

std::int64_t Loader::dataset_row(std::int64_t row) {
  const std::int64_t size = dataset_.size();
  const std::int64_t at = index_ + row, epoch = epoch_ + at / size;
  if (!options_.shuffle) return at % size;
  const RandomKey key{options_.seed, stream_of("data.order"),
                      static_cast<std::uint64_t>(epoch) << 32};
  if (size > kTableRows) {
    if (epoch != order_epoch_) many_.emplace(size, key, static_cast<std::uint64_t>(epoch));
    order_epoch_ = epoch;
    return (*many_)(at % size);
  }
  if (epoch != order_epoch_) {
    order_.resize(static_cast<std::size_t>(size));
    permute_range(order_, key);
    order_epoch_ = epoch;
  }
  return order_[static_cast<std::size_t>(at % size)];
}

Batch Loader::rows(std::int64_t first, std::int64_t count) {
  check(first >= 0 && count >= 0 && first + count <= batch_rows(),
        "loader: rows [{}, {}) must lie in the global batch of {}", first, first + count,
        batch_rows());
  asked_first_ = first;
  asked_count_ = count;
  return dataset_.rows(dataset_rows(first, count));
}

std::vector<std::int64_t> Loader::dataset_rows(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    numbers[static_cast<std::size_t>(i)] = dataset_row(first + i);
  return numbers;
}

void Loader::advance() {
  const std::int64_t size = dataset_.size();
  index_ += batch_rows();
  if (options_.last == LastBatch::dropped && index_ + options_.batch > size) index_ = size;
  epoch_ += index_ / size;
  index_ %= size;
  if (asked_first_ + asked_count_ <= batch_rows())
    dataset_.will_read(dataset_rows(asked_first_, asked_count_));
}

Batch Loader::next(std::int64_t first, std::int64_t count) {
  Batch out = rows(first, count);
  advance();
  return out;
}

io::Json Loader::state() const {
  io::Json json;
  json.set("epoch", epoch_).set("index", index_);
  json.set("seed", static_cast<std::int64_t>(options_.seed));
  if (!options_.shuffle) json.set("shuffle", std::int64_t{0});  // older files shuffle
  if (options_.shuffle && dataset_.size() > kTableRows) json.set("order", "feistel");
  for (const auto& [name, value] : dataset_.identity()) json.set(name, value);
  json.set("rows_crc32c", std::int64_t{fingerprint_});
  for (const auto& [name, value] : dataset_.seen(index_)) json.set(name, value);
  return json;
}

void Loader::set_state(const io::Json& state) {
  const bool shuffled = !state.find("shuffle");
  const auto word = [](bool on) { return on ? "on" : "off"; };
  check(shuffled == options_.shuffle, "loader: the saved position is for shuffle {}, got {}",
        word(shuffled), word(options_.shuffle));
  const auto check_same = [&](const std::string& name, std::int64_t own) {
    check(state.find(name), "loader: the saved position is for data without {}, got {}", name, own);
    const std::int64_t saved = state.at(name).as_int();
    check(saved == own, "loader: the saved position is for {} {}, got {}", name, saved, own);
  };
  check_same("seed", static_cast<std::int64_t>(options_.seed));
  for (const auto& [name, value] : dataset_.identity()) check_same(name, value);
  // Older versions have no checksum.
  check(!state.find("rows_crc32c") || state.at("rows_crc32c").as_int() == fingerprint_,
        "loader: the saved position is for data with other contents");
  check(!options_.shuffle || dataset_.size() <= kTableRows || state.find("order"),
        "loader: the saved position is of an older version, which ordered more than {} rows in "
        "another way; begin a new run from its weights",
        kTableRows);
  const std::int64_t epoch = state.at("epoch").as_int(), index = state.at("index").as_int();
  check(epoch >= 0 && epoch <= kMaxEpochs && index >= 0 && index < dataset_.size(),
        "loader: the saved position (epoch {}, row {}) must lie in an epoch of {} rows", epoch,
        index, dataset_.size());
  epoch_ = epoch;
  index_ = index;
  if (options_.last == LastBatch::dropped && index_ + options_.batch > dataset_.size()) {
    ++epoch_;
    index_ = 0;
  }
}

std::string Loader::position() const { return state().dump(); }
void Loader::set_position(const std::string& position) {
  set_state(io::Json::parse(position, "loader: the saved position"));
}

EvalLoader::EvalLoader(const Dataset& dataset, std::int64_t rows_per_batch)
    : dataset_(dataset), batch_(rows_per_batch) {
  check(batch_ >= 1, "loader: batch must be at least 1, got {}", batch_);
  check(dataset.size() >= 1, "loader: the dataset must have at least 1 row, got {}",
        dataset.size());
}

std::int64_t EvalLoader::batches() const { return (dataset_.size() + batch_ - 1) / batch_; }

Batch EvalLoader::batch(std::int64_t i) const {
  check(i >= 0 && i < batches(), "loader: evaluation batch must be in [0, {}), got {}", batches(),
        i);
  const std::int64_t first = i * batch_, count = rows_of(i);
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  Batch out = dataset_.rows(numbers);
  if (count == batch_ || !dataset_.allows_padding()) return out;
  return {padded(out.inputs, batch_, 0), padded(out.targets, batch_, kIgnore),
          out.positions.defined() ? padded(out.positions, batch_, -1) : Tensor(), Tensor(),
          each_tensor(out.more, [&](const Tensor& t) { return padded(t, batch_, 0); })};
}

}  // namespace weft::data
