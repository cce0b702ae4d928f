#pragma once
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/train/loss.h"

namespace weft::train {

/// A number by name, as the host has it.
struct Value {
  std::string name;
  double value = 0;
};

/// What one optimizer step produced. From a GPU the numbers are on their way: reading one waits.
class StepResult {
 public:
  /// One number, or several as a list.
  class Number {
   public:
    /// Starts to read a metric; one without a count is divided by `divisor`.
    Number(const Metric& metric, double divisor);
    std::string name, shown;
    int decimals;
    bool is_list;
    /// NaN on the meta device.
    double value() const { return values_.empty() ? kNan : values_[0].value() / divisor_; }
    std::vector<double> list() const;

   private:
    static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    std::vector<cuda::Readback> values_;
    double divisor_;
  };

  std::vector<Number> numbers;  ///< "loss" first
  double lr = 0;
  std::int64_t live_bytes = 0, peak_bytes = 0;

  double loss() const { return numbers.at(0).value(); }
  /// Before clipping.
  double grad_norm() const { return at("grad_norm").value(); }
  /// Null without a number of this name.
  const Number* find(std::string_view name) const;
  /// Throws Error without one.
  const Number& at(std::string_view name) const;
};

}  // namespace weft::train
