#include "weft/tests/generated/program.h"

#include <algorithm>
#include <cmath>

#include "weft/core/error.h"

namespace weft::generated {
namespace {

constexpr std::int64_t kMostElements = 300;

bool moderate(const Array& x) {
  return std::all_of(x.at.begin(), x.at.end(), [](const Number& n) {
    return std::abs(n.v) < 1e3 && std::abs(n.s) < 1e4 && std::abs(n.t) < 1e4 &&
           std::abs(n.st) < 1e6;  // false for NaN
  });
}

// Rounding changes every value by at most a tenth.
bool well_conditioned(const Array& x, const Array& rounded) {
  for (double Number::*part : {&Number::v, &Number::s, &Number::t, &Number::st}) {
    double largest = 1e-2, difference = 0;
    for (std::size_t i = 0; i < x.at.size(); ++i) {
      largest = std::max(largest, std::abs(x.at[i].*part));
      difference = std::max(difference, std::abs(x.at[i].*part - rounded.at[i].*part));
      if (std::isnan(rounded.at[i].*part)) return false;
    }
    if (difference > 0.1 * largest) return false;
  }
  return true;
}

}  // namespace

int Maker::any(int least_axes) {
  std::vector<int> found;
  for (std::size_t i = 0; i < values_.size(); ++i)
    if (values_[i].ndim() >= least_axes) found.push_back(static_cast<int>(i));
  if (found.empty()) return -1;
  if (rng.chance(0.6)) return found.back();
  return found[static_cast<std::size_t>(rng.below(static_cast<std::int64_t>(found.size())))];
}

int Maker::like(const Shape& shape) {
  if (rng.chance(0.7))
    for (int tries = 0; tries < 4; ++tries) {
      const auto i = static_cast<int>(rng.below(static_cast<std::int64_t>(values_.size())));
      if (this->shape(i) == shape) return i;
    }
  return leaf(shape);
}

int Maker::leaf(const Shape& shape) {
  Item item;
  item.shape = shape;
  item.layout = static_cast<Layout>(rng.below(kLayouts));
  const std::int64_t count = shape.numel();
  // Multiples of 1/16, which every dtype represents exactly; some leaves have many equal numbers.
  const double grid = rng.chance(0.15) ? 2 : 16;
  for (std::int64_t i = 0; i < count; ++i) {
    item.values.push_back(std::clamp(std::round(rng.normal() * grid) / grid, -4.0, 4.0));
    item.along_s.push_back(rng.uniform(-1, 1));
    item.along_t.push_back(rng.uniform(-1, 1));
  }
  repeat_values(item.layout, shape, item.values);
  values_.push_back(interpret(item, {}));
  program_.push_back(std::move(item));
  return static_cast<int>(program_.size()) - 1;
}

std::int64_t Maker::length() {
  constexpr std::int64_t kLengths[] = {1, 2, 2, 3, 3, 4, 5, 5, 7, 1};
  if (rng.chance(0.015)) return 0;
  return kLengths[rng.below(10)];
}

Array interpret(const Item& item, const std::vector<Array>& values) {
  if (item.op < 0) {
    Array leaf = filled(item.shape, 0);
    for (std::size_t i = 0; i < leaf.at.size(); ++i) {
      leaf.at[i] = {item.values[i], item.along_s[i], item.along_t[i], 0};
      leaf.at[i].exact = true;
    }
    return leaf;
  }
  Arrays in;
  for (const int i : item.in) in.push_back(&values[static_cast<std::size_t>(i)]);
  return op_of(item).exact(item, in);
}

std::vector<Array> interpret(const Program& program) {
  std::vector<Array> values;
  for (const Item& item : program) values.push_back(interpret(item, values));
  return values;
}

Array interpret_rounded(const Item& item, const std::vector<Array>& values,
                        const Rounding& rounding, std::uint64_t seed) {
  const RandomRounding random(rounding.eps, seed);
  return interpret(item, values);
}

void round_derivatives(Array& x, const Rounding& rounding, std::uint64_t seed) {
  RandomRounding random(rounding.eps, ~seed);
  for (Number& n : x.at)
    for (double* part : {&n.s, &n.t, &n.st}) random.round(*part);
}

Program make_program(Rng rng, int longest, const Rounding& rounding, std::vector<Array>& values) {
  pole_width = std::max(1e-4, 4 * rounding.eps);
  Program program;
  values.clear();
  std::vector<Array> other;  // the same, with random rounding
  Maker maker(rng, program, values);
  const std::int64_t leaves = 1 + rng.below(2);
  for (std::int64_t i = 0; i < leaves; ++i) {
    Shape shape;
    for (std::int64_t axes = rng.chance(0.05) ? 0 : 1 + rng.below(4); axes > 0; --axes)
      shape.push_back(maker.length());
    maker.leaf(shape);
  }
  const std::int64_t ops = rng.chance(0.5) ? longest : 1 + rng.below(longest);
  int made = 0;
  for (int tries = 0; made < ops && tries < 200; ++tries) {
    const std::size_t before = program.size();
    Item item;
    item.op = static_cast<int>(rng.below(static_cast<std::int64_t>(program_ops().size())));
    bool good = op_of(item).make(maker, item);
    if (good) {
      while (other.size() < program.size())
        other.push_back(interpret(program[other.size()], other));
      Closest::reset();
      Array result = interpret(item, values);
      good = Closest::get() > rounding.margin && moderate(result) &&
             result.shape.numel() <= kMostElements && result.ndim() <= 5;
      if (good) {
        Closest::reset();
        Array again = interpret_rounded(item, other, rounding, program.size());
        good = Closest::get() > rounding.margin && well_conditioned(result, again);
        other.push_back(std::move(again));
      }
      if (good) {
        program.push_back(std::move(item));
        values.push_back(std::move(result));
        ++made;
      }
    }
    if (!good) {
      program.resize(before);
      values.resize(before);
      other.resize(std::min(other.size(), before));
    }
  }
  return program;
}

Program only_for(const Program& program, int last) {
  std::vector<int> number(program.size(), -1);
  std::vector<bool> needed(program.size(), false);
  needed[static_cast<std::size_t>(last)] = true;
  for (int i = last; i >= 0; --i)
    if (needed[static_cast<std::size_t>(i)])
      for (const int k : program[static_cast<std::size_t>(i)].in)
        needed[static_cast<std::size_t>(k)] = true;
  Program kept;
  for (std::size_t i = 0; i <= static_cast<std::size_t>(last); ++i) {
    if (!needed[i]) continue;
    number[i] = static_cast<int>(kept.size());
    kept.push_back(program[i]);
    for (int& k : kept.back().in) k = number[static_cast<std::size_t>(k)];
  }
  return kept;
}

std::string to_string(const Program& program, const std::vector<Array>& values) {
  std::string text;
  for (std::size_t i = 0; i < program.size(); ++i) {
    const Item& item = program[i];
    const char* what = item.op < 0 ? name(item.layout) : op_of(item).name;
    text += message("  {} = {}", i, what);
    for (const int k : item.in) text += message(" {}", k);
    if (!item.ints.empty()) text += " ;";
    for (const std::int64_t k : item.ints) text += message(" {}", k);
    if (!item.reals.empty()) text += " ;";
    for (const double x : item.reals) text += message(" {}", x);
    text += message(" -> {}\n", values[i].shape);
  }
  return text;
}

}  // namespace weft::generated
