#include "weft/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/data/permutation.h"

namespace weft::data {
namespace {

constexpr std::size_t kMostSources = 1024;

/// Whole numbers in proportion to the weights, each at least 1, that sum to `total`.
std::vector<std::int64_t> apportion(const std::vector<Mixture::Source>& sources,
                                    std::int64_t total) {
  double sum = 0;
  for (const Mixture::Source& s : sources) sum += s.weight;
  std::vector<std::int64_t> counts;
  std::vector<double> missing;
  for (const Mixture::Source& s : sources) {
    const double exact = s.weight / sum * static_cast<double>(total);
    counts.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(exact)));
    missing.push_back(exact - static_cast<double>(counts.back()));
  }
  // One by one to those that miss most, or from those that have most too much.
  for (std::int64_t left = total - std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
       left != 0; left -= left > 0 ? 1 : -1) {
    const double sign = left > 0 ? 1 : -1;
    std::size_t chosen = counts.size();
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (left < 0 && counts[i] == 1) continue;
      if (chosen == counts.size() || sign * missing[i] > sign * missing[chosen]) chosen = i;
    }
    counts[chosen] += left > 0 ? 1 : -1;
    missing[chosen] -= sign;
  }
  return counts;
}

}  // namespace

Mixture::Mixture(std::vector<Source> sources, std::uint64_t seed)
    : sources_(std::move(sources)), seed_(seed) {
  check(!sources_.empty() && sources_.size() <= kMostSources,
        "mixture: the number of sources must be in [1, {}], got {}", kMostSources, sources_.size());
  for (const Source& s : sources_) {
    check(std::isfinite(s.weight) && s.weight > 0,
          "mixture: a weight must be a number above 0, got {}", s.weight);
    check(s.data && s.data->size() >= 1, "mixture: a dataset must have at least 1 row");
  }
  slots_of_ = apportion(sources_, kPattern);
  // Each slot goes to the source whose next row is due first among those that may have one: row j
  // (from 0) of a source with share w belongs between the slots j / w and (j + 1) / w. Taking the
  // earliest end first keeps every source within one row of its share at any slot.
  // Source: Tijdeman 1980, "The chairman assignment problem".
  std::vector<std::int64_t> used(sources_.size());
  for (std::int64_t slot = 0; slot < kPattern; ++slot) {
    std::size_t chosen = sources_.size();
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      // (slot + 1) w - used must be at least 1 / (2k - 2), or the source would get ahead.
      const std::int64_t k = std::max<std::int64_t>(std::ssize(sources_), 2);
      const bool may = (2 * k - 2) * ((slot + 1) * slots_of_[i] - used[i] * kPattern) >= kPattern;
      if (!may) continue;
      // The deadline (used + 1 - 1 / (2k - 2)) / w, compared without division.
      const auto deadline = [&](std::size_t s) {
        return (static_cast<double>(used[s]) + 1 - 1 / static_cast<double>(2 * k - 2)) /
               static_cast<double>(slots_of_[s]);
      };
      if (chosen == sources_.size() || deadline(i) < deadline(chosen)) chosen = i;
    }
    check(chosen < sources_.size(), "mixture: no source is due at slot {}", slot);
    pattern_.push_back(
        {static_cast<std::uint32_t>(chosen), static_cast<std::uint32_t>(used[chosen]++)});
  }
}

std::vector<std::int64_t> Mixture::counts(std::int64_t row) const {
  check(row >= 0 && row <= kEndless, "mixture: a row must be in [0, {}], got {}", kEndless, row);
  std::vector<std::int64_t> out;
  for (const std::int64_t slots : slots_of_) out.push_back(row / kPattern * slots);
  for (std::int64_t slot = 0; slot < row % kPattern; ++slot)
    ++out[pattern_[static_cast<std::size_t>(slot)].source];
  return out;
}

double Mixture::share(std::size_t source) const {
  return static_cast<double>(slots_of_.at(source)) / static_cast<double>(kPattern);
}

std::vector<Mixture::Wanted> Mixture::wanted(std::span<const std::int64_t> numbers) const {
  std::vector<Wanted> out(sources_.size());
  for (std::size_t at = 0; at < numbers.size(); ++at) {
    const std::int64_t row = numbers[at];
    check(row >= 0 && row < kEndless, "mixture: a row must be in [0, {}), got {}", kEndless, row);
    const Slot slot = pattern_[static_cast<std::size_t>(row % kPattern)];
    const std::int64_t number = row / kPattern * slots_of_[slot.source] + slot.before,
                       size = sources_[slot.source].data->size();
    const RandomKey key{seed_, stream_of(message("data.mixture.{}", slot.source))};
    const auto epoch = static_cast<std::uint64_t>(number / size);
    out[slot.source].numbers.push_back(Permutation(size, key, epoch)(number % size));
    out[slot.source].places.push_back(static_cast<std::int64_t>(at));
  }
  return out;
}

void Mixture::will_read(std::span<const std::int64_t> numbers) const {
  const std::vector<Wanted> of = wanted(numbers);
  for (std::size_t s = 0; s < of.size(); ++s) sources_[s].data->will_read(of[s].numbers);
}

Batch Mixture::rows(std::span<const std::int64_t> numbers) const {
  const std::vector<Wanted> of = wanted(numbers);
  Batch out;
  for (std::size_t s = 0; s < of.size(); ++s) {
    // Without rows the first source says what a row is.
    if (of[s].numbers.empty() && !(numbers.empty() && s == 0)) continue;
    const Batch part = sources_[s].data->rows(of[s].numbers);
    const auto place = [&](const Tensor& rows, Tensor& all) {
      if (!rows.defined()) return;
      Shape shape = rows.shape();
      shape[0] = std::ssize(numbers);
      if (!all.defined()) all = Tensor::empty(shape, rows.dtype());
      check(all.shape() == shape && all.dtype() == rows.dtype(),
            "mixture: rows of all datasets must have one shape and dtype, got {} {} and {} {}",
            all.dtype(), all.shape(), rows.dtype(), shape);
      for (std::size_t i = 0; i < of[s].places.size(); ++i)
        all.narrow(0, of[s].places[i], 1).copy_(rows.narrow(0, static_cast<std::int64_t>(i), 1));
    };
    const bool is_first = !out.inputs.defined();
    check(is_first || out.positions.defined() == part.positions.defined(),
          "mixture: all datasets or none must have positions");
    if (is_first) out.more = each_tensor(part.more, [](const Tensor&) { return Tensor(); });
    check(std::equal(part.more.begin(), part.more.end(), out.more.begin(), out.more.end(),
                     [](const NamedTensor& a, const NamedTensor& b) { return a.name == b.name; }),
          "mixture: more of all datasets must have the same names in the same order");
    place(part.inputs, out.inputs);
    place(part.targets, out.targets);
    place(part.positions, out.positions);
    for (std::size_t i = 0; i < part.more.size(); ++i)
      place(part.more[i].tensor, out.more[i].tensor);
  }
  return out;
}

bool Mixture::allows_padding() const {
  return std::all_of(sources_.begin(), sources_.end(),
                     [](const Source& s) { return s.data->allows_padding(); });
}

std::vector<std::pair<std::string, std::int64_t>> Mixture::identity() const {
  std::vector<std::pair<std::string, std::int64_t>> out = {{"sources", std::ssize(sources_)}};
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const std::string name = message("source_{}_", i + 1);
    out.emplace_back(name + "weight", slots_of_[i]);
    for (const auto& [key, value] : sources_[i].data->identity())
      out.emplace_back(name + key, value);
  }
  return out;
}

std::vector<std::pair<std::string, std::int64_t>> Mixture::seen(std::int64_t row) const {
  std::vector<std::pair<std::string, std::int64_t>> out;
  const std::vector<std::int64_t> rows = counts(row);
  for (std::size_t i = 0; i < rows.size(); ++i)
    out.emplace_back(message("source_{}_rows", i + 1), rows[i]);
  return out;
}

bool Mixture::changed() const {
  return std::any_of(sources_.begin(), sources_.end(),
                     [](const Source& s) { return s.data->changed(); });
}

void Mixture::check_unchanged() const {
  for (const Source& s : sources_) s.data->check_unchanged();
}

}  // namespace weft::data
