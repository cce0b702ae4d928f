#include "weft/tests/generated/program_check.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/recompute.h"
#include "weft/autograd/reduce.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft::generated {
namespace {

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
    std::vector<int> uses(program.size());
    for (const Item& item : program)
      for (const int k : item.in) ++uses[static_cast<std::size_t>(k)];
    for (std::uint64_t i = 0; i < kRounded; ++i) {
      std::vector<Array>& results = rounded_.emplace_back();
      for (const Item& item : program) {
        const std::uint64_t seed = 1000 * i + results.size();
        Item with = item;
        std::vector<Array> operands;
        for (int& k : with.in) {
          operands.push_back(results[static_cast<std::size_t>(k)]);
          // The gradient of an operand with several uses is a rounded sum, with a term for each.
          if (uses[static_cast<std::size_t>(k)] > 1)
            round_derivatives(operands.back(), how.rounding, 16 * seed + operands.size());
          k = static_cast<int>(operands.size()) - 1;
        }
        results.push_back(interpret_rounded(with, operands, how.rounding, seed));
      }
    }
    for (const Item& item : program) {
      if (item.op >= 0) continue;
      Tensor leaf = tensor_in(item.layout, item.shape, item.values, how.dtype, how.device);
      leaves_.push_back(leaf.set_requires_grad());
    }
  }

  // "" or a description of the error.
  std::string first_order(Rng& rng) {
    const std::size_t n = program_.size();
    const std::size_t from = static_cast<std::size_t>(rng.below(static_cast<std::int64_t>(n)));
    const std::size_t to =
        from + 1 + static_cast<std::size_t>(rng.below(static_cast<std::int64_t>(n - from)));
    for (const bool again : {false, true}) {
      Tape tape;
      const std::vector<Tensor> values = forward(again ? from : 0, again ? to : 0);
      for (std::size_t i = 0; i < n; ++i)
        if (const std::string why = value_difference(i, values[i]); !why.empty())
          return (again ? "recomputed " : "") + why;
      const TensorList gradients = gradients_of(tape, loss_of(values));
      if (const std::string why = compare("gradient", along(gradients, false), false); !why.empty())
        return (again ? message("recomputed items [{}, {}): ", from, to) : "") + why;
    }
    return "";
  }

  std::string second_order() {
    Tape outer;
    Tensor product;
    {
      Tape inner;
      const TensorList gradients = gradients_of(inner, loss_of(forward(0, 0)));
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
    return compare("second order", along(gradients_of(outer, product), true), true);
  }

 private:
  Tensor run_item(std::size_t i, const std::vector<Tensor>& values) const {
    const Item& item = program_[i];
    TensorList in;
    for (const int k : item.in) in.push_back(values[static_cast<std::size_t>(k)]);
    const Tensor y = op_of(item).weft(item, in);
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

  // Null for all leaves if no leaf reaches the loss.
  TensorList gradients_of(Tape& tape, const Tensor& loss) const {
    if (loss.defined() && Tape::follows(loss)) return tape.gradients(loss, leaves_);
    TensorList none;
    for (int i = 0; i < leaves_.size(); ++i) none.push_back({});
    return none;
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

  const Program& program_;
  const std::vector<Array>& exact_;
  const How how_;
  const std::vector<int> ends_;
  std::vector<std::vector<Array>> rounded_;
  TensorList leaves_;
};

}  // namespace

std::size_t start_of_order_two(const Program& program) {
  std::size_t n = 0;
  while (n < program.size() && (program[n].op < 0 || op_of(program[n]).order == 2)) ++n;
  return n;
}

std::string check_program(const Program& program, const std::vector<Array>& exact, const How& how,
                          Rng rng) {
  try {
    std::string why = Check(program, exact, how).first_order(rng);
    if (!why.empty() || how.dtype != DType::f64) return why;
    const auto count = static_cast<std::ptrdiff_t>(start_of_order_two(program));
    const Program start(program.begin(), program.begin() + count);
    return start.empty() ? "" : Check(start, exact, how).second_order();
  } catch (const Error& e) {
    return message("Error: {}", e.what());
  }
}

}  // namespace weft::generated
