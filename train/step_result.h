#pragma once
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/train/loss.h"

namespace weft::train {

/// A named number on the host.
struct Value {
  std::string name;
  double value = 0;
};

/// The result of one optimizer step. Numbers of a GPU are in transit: accessing one waits.
class StepResult {
 public:
  /// One number, or several as a list.
  class Number {
   public:
    /// Starts to read a metric back; a metric without a count is divided by `divisor`.
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

  std::vector<Number> numbers;  ///< "loss" is first
  double lr = 0;
  std::int64_t live_bytes = 0, peak_bytes = 0;

  double loss() const { return numbers.at(0).value(); }
  /// The norm before clipping.
  double grad_norm() const { return at("grad_norm").value(); }
  /// Null if no number has this name.
  const Number* find(std::string_view name) const;
  /// Throws Error if no number has this name.
  const Number& at(std::string_view name) const;
};

}  // namespace weft::train
