#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <set>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/view.h"
#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/tests/generated/program.h"

// Compares random programs of 1 to 12 ops with the interpreter: every value, the gradient and the
// Hessian in a random direction, and the same under recompute.
//   WEFT_GENERATED_PROGRAMS=20000  number of programs (500)
//   WEFT_GENERATED_SEED=7          seed of all of them (1)
//   WEFT_GENERATED_PROGRAM=381     runs only this one

namespace weft::generated_programs_test {
using namespace weft::generated;

namespace {

std::uint64_t setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

struct How {
  DType dtype = DType::f64;
  Device device = kCpu;
  Rounding rounding = {};
  std::uint64_t count = 0;
};

// The number of runs with random rounding, which measure how much rounding changes the results.
constexpr std::uint64_t kRounded = 3;

// The bound on rounding: 16 times that spread, four roundings of a result and 64 within ops, where
// numbers of size 1 may have cancelled.
double bound(double spread, double size, const Rounding& rounding) {
  return 16 * spread + 4 * rounding.eps * size + 1000 * rounding.compute * std::max(size, 1.0);
}

// Fixed weights of the results in the loss.
std::vector<double> loss_weights(std::size_t item, std::size_t count) {
  Rng rng{item * 131 + 5};
  std::vector<double> weights;
  for (std::size_t i = 0; i < count; ++i)
    weights.push_back(static_cast<double>(rng.below(33) - 16) / 16 + 0.03125);
  return weights;
}

// The items that no other item uses.
std::vector<int> ends_of(const Program& program) {
  std::set<int> used;
  for (const Item& item : program) used.insert(item.in.begin(), item.in.end());
  std::vector<int> ends;
  for (int i = 0; i < static_cast<int>(program.size()); ++i)
    if (!used.count(i)) ends.push_back(i);
  return ends;
}

class Check {
 public:
  Check(const Program& program, const std::vector<Array>& exact, const How& how)
      : program_(program), exact_(exact), how_(how), ends_(ends_of(program)) {
    for (std::uint64_t i = 0; i < kRounded; ++i) {
      std::vector<Array>& results = rounded_.emplace_back();
      for (const Item& item : program)
        results.push_back(
            interpret_rounded(item, results, how.rounding, 1000 * i + results.size()));
    }
  }

  /// "" or a description of the error.
  std::string all(Rng rng) {
    try {
      for (const Item& item : program_) {
        if (item.op >= 0) continue;
        Tensor leaf = tensor_in(item.layout, item.shape, item.values, how_.dtype, how_.device);
        leaves_.push_back(leaf.set_requires_grad());
      }
      std::string why = first_order(rng);
      if (why.empty() && how_.dtype == DType::f64) why = second_order();
      return why;
    } catch (const Error& e) {
      return message("Error: {}", e.what());
    }
  }

 private:
  Tensor run_item(std::size_t i, const std::vector<Tensor>& values) const {
    const Item& item = program_[i];
    TensorList in;
    for (const int k : item.in) in.push_back(values[static_cast<std::size_t>(k)]);
    const Tensor y = program_ops()[static_cast<std::size_t>(item.op)].weft(item, in);
    return y.dtype() == how_.dtype ? y : cast(y, how_.dtype);
  }

  std::vector<Tensor> with_leaves() const {
    std::vector<Tensor> values(program_.size());
    int next = 0;
    for (std::size_t i = 0; i < program_.size(); ++i)
      if (program_[i].op < 0) values[i] = leaves_[next++];
    return values;
  }

  // All values. Items [from, to) run as one recomputed region if the range is not empty.
  std::vector<Tensor> forward(std::size_t from, std::size_t to) const {
    std::vector<Tensor> values = with_leaves();
    for (std::size_t i = 0; i < program_.size(); ++i) {
      if (i == from && to > from) region(from, to, values);
      if (!values[i].defined()) values[i] = run_item(i, values);
    }
    return values;
  }

  void region(std::size_t from, std::size_t to, std::vector<Tensor>& values) const {
    std::set<int> needed;
    for (std::size_t i = from; i < to; ++i)
      for (const int k : program_[i].in)
        if (static_cast<std::size_t>(k) < from || program_[static_cast<std::size_t>(k)].op < 0)
          needed.insert(k);
    const std::vector<int> outside(needed.begin(), needed.end());
    if (outside.empty() || outside.size() > 5) return;
    TensorList inputs;
    for (const int k : outside) inputs.push_back(values[static_cast<std::size_t>(k)]);
    const TensorList results = recompute(
        [this, outside, from, to](const TensorList& in) {
          std::vector<Tensor> inner(program_.size());
          for (std::size_t k = 0; k < outside.size(); ++k)
            inner[static_cast<std::size_t>(outside[k])] = in[static_cast<int>(k)];
          TensorList made;
          for (std::size_t i = from; i < to; ++i)
            if (program_[i].op >= 0) made.push_back(inner[i] = run_item(i, inner));
          return made;
        },
        inputs);
    int next = 0;
    for (std::size_t i = from; i < to; ++i)
      if (program_[i].op >= 0) values[i] = results[next++];
  }

  Tensor loss_of(const std::vector<Tensor>& values) const {
    Tensor loss;
    for (const int end : ends_) {
      const auto i = static_cast<std::size_t>(end);
      const Tensor& y = values[i];
      const Tensor weights = tensor_in(Layout::contiguous, y.shape(),
                                       loss_weights(i, exact_[i].at.size()), y.dtype(), y.device());
      const Tensor part = sum(y * weights);
      loss = loss.defined() ? loss + part : part;
    }
    return loss;
  }

  std::string first_order(Rng& rng) {
    const std::size_t n = program_.size();
    const std::size_t from = static_cast<std::size_t>(rng.below(static_cast<std::int64_t>(n)));
    const std::size_t to =
        from + 1 + static_cast<std::size_t>(rng.below(static_cast<std::int64_t>(n - from)));
    TensorList plain;
    for (const bool again : {false, true}) {
      Tape tape;
      const std::vector<Tensor> values = forward(again ? from : 0, again ? to : 0);
      for (std::size_t i = 0; i < n; ++i)
        if (const std::string why = value_difference(i, values[i]); !why.empty())
          return (again ? "recomputed " : "") + why;
      const TensorList gradients = tape.gradients(loss_of(values), leaves_);
      if (const std::string why = compare("gradient", along(gradients, false), false); !why.empty())
        return (again ? message("recomputed items [{}, {}): ", from, to) : "") + why;
    }
    return "";
  }

  std::string value_difference(std::size_t i, const Tensor& got) const {
    const Array& want = exact_[i];
    if (!(got.shape() == want.shape))
      return message("item {}: shape {} where {} was expected", i, got.shape(), want.shape);
    const std::vector<double> values = values_of(got);
    double largest = 0, spread = 0;
    for (std::size_t k = 0; k < values.size(); ++k) {
      largest = std::max(largest, std::abs(want.at[k].v));
      for (const std::vector<Array>& other : rounded_)
        spread = std::max(spread, std::abs(other[i].at[k].v - want.at[k].v));
    }
    for (std::size_t k = 0; k < values.size(); ++k)
      if (!(std::abs(values[k] - want.at[k].v) <= bound(spread, largest, how_.rounding)))
        return message("item {}, element {}: {} where {} was expected", i, k, values[k],
                       want.at[k].v);
    return "";
  }

  // The loss's derivative (the mixed one for `both`) from the interpreter, and the size of its
  // terms.
  struct Derivative {
    double value = 0, size = 0;
  };
  Derivative derivative(const std::vector<Array>& results, bool both) const {
    Derivative d;
    for (const int end : ends_) {
      const auto i = static_cast<std::size_t>(end);
      const Row& y = results[i].at;
      const std::vector<double> weights = loss_weights(i, y.size());
      for (std::size_t k = 0; k < weights.size(); ++k) {
        const double term = weights[k] * (both ? y[k].st : y[k].s);
        d.value += term;
        d.size += std::abs(term);
      }
    }
    return d;
  }

  // The product of gradients with the leaves' directions.
  Derivative along(const TensorList& gradients, bool t) const {
    Derivative d;
    int leaf = 0;
    for (const Item& item : program_) {
      if (item.op >= 0) continue;
      const Tensor& g = gradients[leaf++];
      if (!g.defined()) continue;
      const std::vector<double> values = values_of(g);
      for (std::size_t k = 0; k < values.size(); ++k) {
        const double term = values[k] * (t ? item.along_t[k] : item.along_s[k]);
        d.value += term;
        d.size += std::abs(term);
      }
    }
    return d;
  }

  std::string compare(const char* what, const Derivative& got, bool both) const {
    const Derivative want = derivative(exact_, both);
    double spread = 0;
    for (const std::vector<Array>& other : rounded_)
      spread = std::max(spread, std::abs(derivative(other, both).value - want.value));
    const double size = std::max(got.size, want.size);
    if (std::abs(got.value - want.value) <= bound(spread, size, how_.rounding)) return "";
    return message("{} in a direction: {} where {} was expected (terms of {})", what, got.value,
                   want.value, size);
  }

  std::string second_order() {
    for (const Item& item : program_)
      if (item.op >= 0 && program_ops()[static_cast<std::size_t>(item.op)].order < 2) return "";
    Tape outer;
    Tensor product;
    {
      Tape inner;
      const TensorList gradients = inner.gradients(loss_of(forward(0, 0)), leaves_);
      int leaf = 0;
      for (const Item& item : program_) {
        if (item.op >= 0) continue;
        const Tensor& g = gradients[leaf++];
        if (!g.defined()) continue;
        const Tensor part =
            sum(g * tensor_in(Layout::contiguous, item.shape, item.along_s, g.dtype(), g.device()));
        product = product.defined() ? product + part : part;
      }
    }
    TensorList gradients;
    for (int i = 0; i < leaves_.size(); ++i) gradients.push_back({});
    if (product.defined() && Tape::follows(product)) gradients = outer.gradients(product, leaves_);
    return compare("second order", along(gradients, true), true);
  }

  const Program& program_;
  const std::vector<Array>& exact_;
  const How how_;
  const std::vector<int> ends_;
  std::vector<std::vector<Array>> rounded_;
  TensorList leaves_;
};

std::string check_program(const Program& program, const How& how, Rng rng,
                          std::vector<Array>& exact) {
  exact.clear();
  for (const Item& item : program) exact.push_back(interpret(item, exact));
  return Check(program, exact, how).all(rng);
}

// The failing program and its shortest failing part.
std::string report(const Program& program, const How& how, Rng rng, std::uint64_t seed,
                   std::uint64_t number, std::string why) {
  Program least = program;
  std::vector<Array> exact;
  for (int last = 0; last < static_cast<int>(program.size()); ++last) {
    const Program part = only_for(program, last);
    const std::string also = check_program(part, how, rng, exact);
    if (also.empty()) continue;
    least = part;
    why = also;
    break;
  }
  check_program(least, how, rng, exact);
  return message("WEFT_GENERATED_SEED={} WEFT_GENERATED_PROGRAM={} ({} on {}): {}\n{}", seed,
                 number, how.dtype, how.device, why, to_string(least, exact));
}

void run_programs(const How& how) {
  const std::uint64_t seed = setting("WEFT_GENERATED_SEED", 1);
  const std::uint64_t first = setting("WEFT_GENERATED_PROGRAM", 0);
  const std::uint64_t end = std::getenv("WEFT_GENERATED_PROGRAM") ? first + 1 : how.count;
  std::set<int> ops;
  std::uint64_t programs = 0, steps = 0, wrong = 0;
  for (std::uint64_t number = first; number < end; ++number) {
    const Rng rng{seed * 1000003 + number};
    std::vector<Array> exact;
    const Program program = make_program(rng, 12, how.rounding, exact);
    const std::string why = Check(program, exact, how).all(rng);
    ++programs;
    for (const Item& item : program)
      if (item.op >= 0) {
        ops.insert(item.op);
        ++steps;
      }
    if (why.empty()) continue;
    if (++wrong <= 10) {
      const std::string text = report(program, how, rng, seed, number, why);
      CHECK_MESSAGE(false, text);
    }
  }
  std::cout << message("generated: {} programs, {} ops of {} kinds, {} on {}, seed {}\n", programs,
                       steps, ops.size(), how.dtype, how.device, seed);
  CHECK(wrong == 0);
  CHECK(programs > 0);
}

std::uint64_t programs() { return setting("WEFT_GENERATED_PROGRAMS", 500); }

constexpr Rounding kF32{0x1p-24, 0x1p-24, 1e-3};
constexpr Rounding kBf16{0x1p-8, 0x1p-24, 5e-2};

}  // namespace

TEST_CASE("generated: programs in values, gradients, second order and under recompute") {
  run_programs({.count = programs()});
}

TEST_CASE("generated: programs in f32") {
  run_programs({.dtype = DType::f32, .rounding = kF32, .count = programs()});
}

TEST_CASE("generated: programs in bf16") {
  run_programs({.dtype = DType::bf16, .rounding = kBf16, .count = programs()});
}

TEST_CASE("generated: programs on the emulated GPU") {
  const Device gpu{Device::Kind::cuda, 0};
  run_programs({DType::f32, gpu, kF32, programs() / 10});
}

}  // namespace weft::generated_programs_test
