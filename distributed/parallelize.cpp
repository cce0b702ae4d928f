#include "weft/distributed/parallelize.h"

#include <algorithm>
#include <iterator>

#include "weft/core/error.h"
#include "weft/distributed/module_placements.h"
#include "weft/distributed/parallelizer.h"
#include "weft/nn/walk.h"

namespace weft::distributed {
namespace {

void check_members(const std::string& name, const nn::Module& m, unsigned needed) {
  check((m.shard_members() & needed) == needed, "parallelize: the rule for {} does not fit a {}",
        name.empty() ? "the model" : name, m.describe());
}

bool covers_parts(const Placement& p) {
  return p.kind == Placement::Kind::whole || p.kind == Placement::Kind::placed;
}

// The layout of a model that is cut over a user axis in place of tp.
void change_axis(Layout& layout, const std::string& axis) {
  for (auto& [name, l] : layout) {
    check(!l.tp_partial && l.shared_by == 1,
          "parallelize: {} has a gradient of which each rank has a part; those are summed over tp "
          "only, got the group {}",
          name, axis);
    if (std::exchange(l.tp_cut, false)) l.cut_over = {axis};
  }
}

}  // namespace

Parallelizer::Parallelizer(nn::Module& model, ProcessGroup& tp, const Plan& plan)
    : model_(model), tp_(tp), plan_(plan) {
  for (const Plan::Rule& rule : plan.rules) patterns_.emplace_back("parallelize", rule.pattern);
  if (!plan.gathers_again.empty()) gathers_again_.emplace("parallelize", plan.gathers_again);
  used_.assign(plan.rules.size(), false);
  nn::detail::for_each_distinct_tensor(model, [&](const std::string& name, const nn::Slot& slot) {
    if (slot.is_buffer) return;
    names_.emplace_back(name, slot.tensor->impl());
    ParameterLayout& layout = layout_[name];
    layout.spec.whole = slot.tensor->shape();
    layouts_.emplace(slot.tensor->impl(), &layout);
  });
  nn::detail::for_each_tensor(model, [&](const std::string& name, const nn::Slot& slot) {
    if (!slot.is_buffer) tensors_.emplace(name, *slot.tensor);
  });
}

Layout Parallelizer::run() {
  nn::detail::for_each_module(model_, [&](const std::string& name, nn::Module& m) {
    const int rule = rule_of(name);
    if (rule < 0) return;
    const Placement& p = plan_.rules[static_cast<std::size_t>(rule)].placement;
    auto* const linear = dynamic_cast<nn::Linear*>(&m);
    if (linear && !linear->lora.empty()) place_adapters(name, *linear, p);
    if (p.kind == Kind::whole) return;
    used_[static_cast<std::size_t>(rule)] = true;
    place(name, m, p);
  });
  place_the_rest();
  for (std::size_t i = 0; i < used_.size(); ++i)
    check(used_[i], "parallelize: the pattern \"{}\" matches no layer of the model",
          plan_.rules[i].pattern);
  return std::move(layout_);
}

int Parallelizer::rule_of(const std::string& name) const {
  for (std::size_t i = 0; i < patterns_.size(); ++i)
    if (patterns_[i].matches(name)) return static_cast<int>(i);
  return -1;
}

void Parallelizer::place(const std::string& name, nn::Module& m, const Placement& p) {
  using nn::Shard;
  struct Rule {
    unsigned members;  // members of Shard that the rule sets
    void (Parallelizer::*apply)(const std::string&, const Placement&, Shard&);
  };
  static constexpr Rule kRules[] = {
      {0, nullptr},
      {Shard::kEnter | Shard::kProduct, &Parallelizer::column},
      {Shard::kLeave | Shard::kProduct, &Parallelizer::row},
      {Shard::kLookup | Shard::kLeave, &Parallelizer::table},
      {Shard::kEnter | Shard::kLeave | Shard::kProduct, &Parallelizer::head},
      {Shard::kHeadLoss, &Parallelizer::loss},
      {Shard::kHeads, &Parallelizer::heads},
      {Shard::kTokens, &Parallelizer::tokens},
      {0, &Parallelizer::own_parameters},
      {Shard::kRowSum, &Parallelizer::norm}};
  static_assert(std::size(kRules) == static_cast<std::size_t>(Kind::placed));
  if (p.kind == Kind::placed) return place_tensors(name, m, p.tensors);
  const Rule& rule = kRules[static_cast<std::size_t>(p.kind)];
  const bool enters = p.communicates && (p.kind == Kind::heads || p.kind == Kind::tokens);
  const unsigned needed = rule.members | (enters ? +Shard::kEnter : 0U);
  check_members(name, m, needed);
  Shard s = nn::shard_of(m);
  (this->*rule.apply)(name, p, s);
  s.enters_again = s.enter && gathers_again(name);
  if (tp_.size() > 1) m.shard = std::make_shared<const Shard>(std::move(s));
}

void Parallelizer::place_tensors(const std::string& name, nn::Module& m, ModulePlacements tensors) {
  const auto* const layer = dynamic_cast<const nn::Linear*>(&m);
  if (layer) tensors = of_linear(std::move(tensors), layer->weight.shape(), tp_);
  const ModuleMoves moves = moves_of(name, tensors, tp_);
  if (layer) {
    // It is added to what leaves.
    const bool cut = moves.output == AxisPlacement::shard(-1);
    const AxisPlacement by_output = cut ? AxisPlacement::shard(0) : AxisPlacement::replicate();
    const auto listed = tensors.parameters.emplace("bias", by_output).first;
    check(listed->second == by_output, "parallelize: {}.bias must be {} by the output {}, got {}",
          name, by_output.text(), moves.output.text(), listed->second.text());
    tensors.parameters.emplace("weight", AxisPlacement::replicate());
    if (layer->bias.defined()) {
      if (!cut) layout_of(layer->bias).tp_partial = moves.output.is_shard() && tp_.size() > 1;
    } else {
      tensors.parameters.erase(listed);
    }
  }
  check_members(name, m,
                (moves.enter ? +nn::Shard::kEnter : 0U) | (moves.leave ? +nn::Shard::kLeave : 0U));
  for (const auto& [parameter, p] : tensors.parameters)
    place_tensor(name, parameter, p, moves.partial);
  if (tp_.size() > 1)
    nn::change_shard(m, [&](nn::Shard& s) {
      s.enter = moves.enter;
      s.leave = moves.leave;
    });
}

void Parallelizer::place_tensor(const std::string& module, const std::string& name,
                                const AxisPlacement& given, bool partial) {
  const Tensor t = own(module, name.c_str());
  check(t.defined(), "parallelize: {} has no parameter {}", module, name);
  const AxisPlacement p = given.of_axes(t.ndim());
  if (is_placed(t)) return;
  if (p.is_replicate()) {
    layout_of(t).tp_partial = partial && tp_.size() > 1;
    return;
  }
  check(p.is_shard(), "parallelize: {}.{} must be R or a shard, got {}", module, name, p.text());
  const nn::ShardSpec part = shard_spec(t.shape(), {p}, {&tp_});
  check(t.dim(p.dim()) % tp_.size() == 0,
        "parallelize: {}.{} is {}{}, which does not divide among tp {}", module, name, t.shape(),
        "(" + p.text() + ")", tp_.size());
  keep(t, p.dim(), part.cuts[0].ranges);
}

Tensor Parallelizer::own(const std::string& name, const char* tensor) const {
  const auto found = tensors_.find(name.empty() ? tensor : name + '.' + tensor);
  return found == tensors_.end() ? Tensor() : found->second;
}

ParameterLayout& Parallelizer::layout_of(const Tensor& t) {
  placed_.insert(t.impl());
  return *layouts_.at(t.impl());
}

ParameterLayout* Parallelizer::keep(const Tensor& t, int axis, const UnitCut::Ranges& ranges) {
  if (is_placed(t)) return nullptr;
  ParameterLayout& layout = layout_of(t);
  if (tp_.size() == 1) return &layout;
  layout.spec.cuts = {{axis, ranges}};
  layout.tp_cut = true;
  keep_part(t, layout.spec);
  return &layout;
}

// For parameters of no sharded layer: the first rule that matches a module they are in.
void Parallelizer::place_the_rest() {
  for (const auto& [name, impl] : names_) {
    if (placed_.contains(impl)) continue;
    int rule = -1;
    for (std::size_t end = name.rfind('.'); rule < 0 && end != std::string::npos && end > 0;
         end = name.rfind('.', end - 1)) {
      rule = rule_of(name.substr(0, end));
      if (rule >= 0 && !covers_parts(plan_.rules[static_cast<std::size_t>(rule)].placement))
        rule = -1;  // the rule is for the layer, not for this parameter
    }
    check(rule >= 0, "parallelize: no rule of the plan is about {}", name);
    used_[static_cast<std::size_t>(rule)] = true;
    const Placement& p = plan_.rules[static_cast<std::size_t>(rule)].placement;
    const bool partial =
        p.kind == Kind::placed ? moves_of(name, p.tensors, tp_).partial : p.partial;
    layout_.at(name).tp_partial = partial && tp_.size() > 1;
  }
}

Layout parallelize(nn::Module& model, ProcessGroup& tp, const Plan& plan) {
  Layout layout = Parallelizer(model, tp, plan).run();
  const std::vector<std::string>& names = mesh_group_names();
  if (std::find(names.begin(), names.end(), tp.name()) == names.end())
    change_axis(layout, tp.name());
  return layout;
}

Layout parallelize(nn::Module& model, DeviceMesh& mesh, const Plan& plan) {
  return parallelize(model, mesh.tp(), plan);
}

nn::ShardSpecs shard_specs(const Layout& layout) {
  nn::ShardSpecs out;
  for (const auto& [name, p] : layout)
    if (!p.spec.cuts.empty()) out[name] = p.spec;
  return out;
}

}  // namespace weft::distributed
