#include "weft/optim/groups.h"

#include <cmath>

#include "weft/core/error.h"
#include "weft/core/pattern.h"

namespace weft::optim {
namespace {

// The biases of experts have an expert axis, so the number of axes alone does not decide.
bool is_bias(const std::string& name) {
  const std::string last = name.substr(name.rfind('.') + 1);
  return last == "bias" || last.ends_with("_bias");
}

}  // namespace

void check_setting(const char* op, const char* what, double x) {
  check(x >= 0 && std::isfinite(x), "{}: {} must be finite and at least 0, got {}", op, what, x);
}

std::vector<ParamSettings> assign_groups(const NamedTensors& parameters,
                                         const std::vector<GroupRule>& rules, double weight_decay) {
  std::vector<Pattern> patterns;
  for (const GroupRule& rule : rules) {
    patterns.emplace_back("groups", rule.pattern);
    check_setting("groups", "lr_scale", rule.lr_scale);
    check_setting("groups", "weight_decay", rule.weight_decay.value_or(0));
  }
  std::vector<bool> used(rules.size(), false);
  std::vector<ParamSettings> out;
  for (const NamedTensor& p : parameters) {
    ParamSettings settings{1, p.tensor.ndim() >= 2 && !is_bias(p.name) ? weight_decay : 0};
    bool decided = false;
    for (std::size_t r = 0; r < rules.size(); ++r) {
      if (!patterns[r].is_found_in(p.name)) continue;
      used[r] = true;
      if (decided) continue;
      decided = true;
      settings.lr_scale = rules[r].lr_scale;
      settings.weight_decay = rules[r].weight_decay.value_or(settings.weight_decay);
    }
    out.push_back(settings);
  }
  for (std::size_t r = 0; r < rules.size(); ++r)
    check(used[r], "groups: pattern \"{}\" must match at least one of the {} parameter names",
          rules[r].pattern, parameters.size());
  return out;
}

}  // namespace weft::optim
