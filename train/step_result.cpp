#include "weft/train/step_result.h"

#include <algorithm>

#include "weft/autograd/elementwise.h"
#include "weft/core/error.h"

namespace weft::train {

// In f64, which holds every count exactly; a count of 0 gives 0.
StepResult::Number::Number(const Metric& m, double divisor)
    : name(m.name),
      shown(m.shown),
      decimals(m.decimals),
      is_list(m.is_list),
      divisor_(m.count.defined() || m.is_whole ? 1 : divisor) {
  if (m.sum.is_meta()) return;
  const Tensor all =
      m.count.defined() ? div(m.sum.to(DType::f64), maximum(m.count.to(DType::f64), 1)) : m.sum;
  const Tensor flat = (is_floating(all.dtype()) ? all : all.to(DType::f64)).detach().flatten();
  for (std::int64_t i = 0; i < flat.numel(); ++i) values_.emplace_back(flat.select(0, i));
}

std::vector<double> StepResult::Number::list() const {
  std::vector<double> out;
  for (const cuda::Readback& r : values_) out.push_back(r.value() / divisor_);
  return out;
}

const StepResult::Number* StepResult::find(std::string_view name) const {
  const auto found =
      std::find_if(numbers.begin(), numbers.end(), [&](const Number& n) { return n.name == name; });
  return found == numbers.end() ? nullptr : &*found;
}

const StepResult::Number& StepResult::at(std::string_view name) const {
  const Number* const found = find(name);
  check(found, "step: has no number '{}'", name);
  return *found;
}

}  // namespace weft::train
