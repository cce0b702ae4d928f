#include "weft/distributed/parallelize.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "weft/autograd/fp8_linear.h"
#include "weft/autograd/linear.h"
#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/core/pattern.h"
#include "weft/distributed/comm_ops.h"
#include "weft/distributed/fp8_overlap.h"
#include "weft/distributed/module_placements.h"
#include "weft/distributed/unit_cut.h"
#include "weft/distributed/vocab.h"
#include "weft/nn/shard.h"
#include "weft/nn/walk.h"

namespace weft::distributed {
namespace {

using Kind = Placement::Kind;
using ShareRows = std::function<Tensor(const Tensor& t)>;

class Parallelizer {
 public:
  Parallelizer(nn::Module& model, ProcessGroup& tp, const Plan& plan)
      : model_(model), tp_(tp), plan_(plan) {
    for (const Plan::Rule& rule : plan.rules) patterns_.emplace_back("parallelize", rule.pattern);
    if (!plan.gathers_again.empty()) gathers_again_.emplace("parallelize", plan.gathers_again);
    used_.assign(plan.rules.size(), false);
    nn::detail::for_each_distinct_tensor(model, [&](const std::string& name, const nn::Slot& slot) {
      if (slot.is_buffer) return;
      names_.emplace_back(slot.tensor->impl(), name);
      layout_[name].spec.whole = slot.tensor->shape();
    });
    nn::detail::for_each_tensor(model, [&](const std::string& name, const nn::Slot& slot) {
      tensors_.emplace(name, *slot.tensor);
    });
  }

  Layout run() {
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

 private:
  int rule_of(const std::string& name) const {
    for (std::size_t i = 0; i < patterns_.size(); ++i)
      if (patterns_[i].matches(name)) return static_cast<int>(i);
    return -1;
  }

  void place(const std::string& name, nn::Module& m, const Placement& p) {
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

  static void check_members(const std::string& name, const nn::Module& m, unsigned needed) {
    check((m.shard_members() & needed) == needed, "parallelize: the rule for {} does not fit a {}",
          name.empty() ? "the model" : name, m.describe());
  }

  void place_tensors(const std::string& name, nn::Module& m, ModulePlacements tensors) {
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
    check_members(
        name, m, (moves.enter ? +nn::Shard::kEnter : 0U) | (moves.leave ? +nn::Shard::kLeave : 0U));
    for (const auto& [parameter, p] : tensors.parameters)
      place_tensor(name, parameter, p, moves.partial);
    if (tp_.size() > 1)
      nn::change_shard(m, [&](nn::Shard& s) {
        s.enter = moves.enter;
        s.leave = moves.leave;
      });
  }

  void place_tensor(const std::string& module, const std::string& name, const AxisPlacement& p,
                    bool partial) {
    const Tensor t = own(module, name.c_str());
    check(t.defined(), "parallelize: {} has no parameter {}", module, name);
    if (std::find(placed_.begin(), placed_.end(), t.impl()) != placed_.end()) return;
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

  // An adapter stands between the `enter` and the `leave` of its layer. The matrix next to the cut
  // is cut likewise. Every rank has all of the other one, with the gradient by its own shard.
  void place_adapters(const std::string& name, nn::Linear& layer, const Placement& p) {
    const bool rows = p.kind == Kind::column || p.kind == Kind::head, columns = p.kind == Kind::row;
    check(p.kind != Kind::placed,
          "parallelize: {} has an adapter, which ModulePlacements do not place; use "
          "Placement::column or row",
          name);
    check(plan_.overlap == Overlap::none || tp_.size() == 1,
          "parallelize: {} has an adapter, whose products do not overlap with communication; use "
          "Overlap::none",
          name);
    UnitCut cut;
    if (p.kind == Kind::head)
      cut.ranges = vocabulary(p);
    else if (rows || columns)
      cut = cut_units(name, p.units, tp_);
    const auto is_partial = [&](const Tensor& t) {
      layout_of(t).tp_partial = tp_.size() > 1 && (rows || columns || p.partial);
    };
    const auto place = [&](nn::Lora& adapter, const PartCut& part) {
      check(adapter.drop.p == 0 || tp_.size() == 1,
            "parallelize: the adapter of {} must have dropout 0 on several ranks, got {}", name,
            adapter.drop.p);
      if (columns)
        keep(adapter.a, 1, cut.ranges);
      else
        is_partial(adapter.a);
      if (!rows) return is_partial(adapter.b);
      ParameterLayout* const layout = keep(adapter.b, 0, part.ranges);
      if (part.shared.empty()) return;
      layout->shared_from = part.shared[0].own;
      layout->shared_by = cut.sharers;
      nn::change_shard(adapter, [&](nn::Shard& s) {
        s.product = [share = sharing(part.shared, cut.all_shared)](const Tensor& x, const Tensor& w,
                                                                   const Tensor& bias) {
          return linear(x, share(w), bias);
        };
      });
    };
    if (layer.parts.empty()) return place(layer.lora[0], {cut.ranges, cut.shared});
    std::int64_t first = 0, own = 0;
    for (nn::LinearPart& part : layer.parts) {
      const PartCut here = part_of(cut, first, part.rows, own);
      first += part.rows;
      if (rows && tp_.size() > 1) part.rows = here.rows;
      own += here.rows;
      for (nn::Lora& adapter : layer.lora)
        if (adapter.part == part.name) place(adapter, here);
    }
  }

  /// What a rank holds of some consecutive rows of a layer, numbered from the first of them.
  struct PartCut {
    UnitCut::Ranges ranges;
    std::vector<SharedRows> shared;
    std::int64_t rows = 0;
  };
  // Rows [first, first + count), of which this rank's begin at its row `own`.
  static PartCut part_of(const UnitCut& cut, std::int64_t first, std::int64_t count,
                         std::int64_t own) {
    PartCut part;
    for (const auto& [begin, end] : cut.ranges) {
      const std::int64_t from = std::max(begin, first), to = std::min(end, first + count);
      if (from >= to) continue;
      part.ranges.emplace_back(from - first, to - first);
      part.rows += to - from;
    }
    for (SharedRows s : cut.shared) {
      s.own -= own;
      if (s.own >= 0 && s.own < part.rows) part.shared.push_back(s);
    }
    return part;
  }

  ShareRows sharing(const std::vector<SharedRows>& rows, std::int64_t all) const {
    return [g = &tp_, list = std::make_shared<const std::vector<SharedRows>>(rows),
            all](const Tensor& t) { return t.defined() ? share_rows(t, *g, list, all) : t; };
  }

  bool gathers_again(const std::string& name) const {
    return gathers_again_ && plan_.sequence && gathers_again_->matches(name);
  }

  /// A tensor of the module `name`, or null.
  Tensor own(const std::string& name, const char* tensor) const {
    const auto found = tensors_.find(name.empty() ? tensor : name + '.' + tensor);
    return found == tensors_.end() ? Tensor() : found->second;
  }

  ParameterLayout& layout_of(const Tensor& t) {
    const auto found = std::find_if(names_.begin(), names_.end(),
                                    [&](const auto& n) { return n.first == t.impl(); });
    placed_.push_back(t.impl());
    return layout_.at(found->second);
  }

  /// Null for a tied weight that was sharded under another name.
  ParameterLayout* keep(const Tensor& t, int axis, const UnitCut::Ranges& ranges) {
    if (std::find(placed_.begin(), placed_.end(), t.impl()) != placed_.end()) return nullptr;
    ParameterLayout& layout = layout_of(t);
    if (tp_.size() == 1) return &layout;
    layout.spec.cuts = {{axis, ranges}};
    layout.tp_cut = true;
    keep_part(t, layout.spec);
    return &layout;
  }

  void check_width(const std::string& name, std::int64_t got, const Placement& p) const {
    check(got == width_of(p.units), "parallelize: {} must have {} features by its rule, got {}",
          name, width_of(p.units), got);
  }

  std::function<Tensor(const Tensor&)> entrance() const {
    if (plan_.sequence) return [g = &tp_](const Tensor& x) { return gather_rows(x, *g); };
    return [g = &tp_](const Tensor& x) { return copy_to_group(x, *g); };
  }

  std::function<Tensor(Tensor)> exit(bool scatters) const {
    if (scatters) return [g = &tp_](Tensor y) { return reduce_scatter_rows(y, *g); };
    return [g = &tp_](Tensor y) { return reduce_from_group(std::move(y), *g); };
  }

  void column(const std::string& name, const Placement& p, nn::Shard& s) {
    const Tensor weight = own(name, "weight");
    check_width(name, weight.dim(0), p);
    const UnitCut cut = cut_units(name, p.units, tp_);
    for (const Tensor& t : {weight, own(name, "bias")})
      if (t.defined())
        if (ParameterLayout* layout = keep(t, 0, cut.ranges); layout && !cut.shared.empty()) {
          layout->shared_from = cut.shared_from;
          layout->shared_by = cut.sharers;
        }
    const bool overlaps = p.communicates && plan_.overlap != Overlap::none;
    const std::function<Tensor(const Tensor&)> enter = p.communicates ? entrance() : nullptr;
    if (!overlaps) s.enter = enter;
    ShareRows share;
    if (!cut.shared.empty()) share = sharing(cut.shared, cut.all_shared);
    if (share || overlaps)
      s.product = [g = &tp_, share, overlaps, gathers = plan_.sequence](
                      const Tensor& x, const Tensor& w, const Tensor& bias) {
        const Tensor b = share ? share(bias) : bias, used = share ? share(w) : w;
        if (!overlaps) return linear(x, used, b);
        return gathers ? gather_linear(x, used, b, *g) : copy_linear(x, used, b, *g);
      };
    const bool gathers = p.communicates && plan_.sequence;
    if (!gathers && !share && !overlaps) return;
    const Fp8Rows how{plan_.overlap, gathers_again(name)};
    s.fp8_product = [g = &tp_, share, how, gathers, enter](
                        const Tensor& x, const Tensor& w, const Tensor& bias,
                        const fp8::Recipe& recipe, const fp8::LayerState& state) {
      const auto multiply = [&](const Tensor& used, const Tensor& b, const fp8::LayerState& own) {
        if (gathers) return fp8_gather_linear(x, used, b, recipe, &own, *g, how);
        return fp8_linear(enter ? enter(x) : x, used, b, recipe, &own);
      };
      if (!share) return multiply(w, bias, state);
      // The summed rows are other memory in every pass: their copy is not worth keeping.
      const fp8::LayerState once{.weight = {}, .delayed = state.delayed};
      const Tensor b = share(bias);
      return multiply(share(w), b, state.weight.is_given() ? state : once);
    };
  }

  void row(const std::string& name, const Placement& p, nn::Shard& s) {
    const Tensor weight = own(name, "weight"), bias = own(name, "bias");
    check_width(name, weight.dim(1), p);
    keep(weight, 1, cut_units(name, p.units, tp_).ranges);
    if (bias.defined()) layout_of(bias).tp_partial = plan_.sequence && tp_.size() > 1;
    if (plan_.sequence)
      s.fp8_product = [g = &tp_, form = plan_.overlap](const Tensor& x, const Tensor& w,
                                                       const Tensor& b, const fp8::Recipe& recipe,
                                                       const fp8::LayerState& state) {
        const Tensor y = fp8_linear_scatter(x, w, recipe, &state, *g, form);
        return b.defined() ? add(y, b) : y;
      };
    if (plan_.overlap == Overlap::none || !plan_.sequence) {
      s.leave = exit(plan_.sequence);
      return;
    }
    s.product = [g = &tp_, form = plan_.overlap](const Tensor& x, const Tensor& w,
                                                 const Tensor& b) {
      const Tensor y = linear_scatter(x, w, *g, form);
      return b.defined() ? add(y, b) : y;
    };
  }

  UnitCut::Ranges vocabulary(const Placement& p) const {
    const VocabRange r = vocab_range(p.units[0].count, tp_.rank(), tp_.size());
    return {{r.first, r.first + r.count}};
  }

  void table(const std::string& name, const Placement& p, nn::Shard& s) {
    keep(own(name, "weight"), 0, vocabulary(p));
    s.lookup = [g = &tp_, vocab = p.units[0].count](const Tensor& ids, const Tensor& weight) {
      return vocab_embedding(weight, ids, vocab, *g);
    };
    s.leave = exit(p.communicates);
  }

  void head(const std::string& name, const Placement& p, nn::Shard& s) {
    check(!own(name, "bias").defined(),
          "parallelize: a head that is cut over ranks must have no bias");
    keep(own(name, "weight"), 0, vocabulary(p));
    Rows columns;
    for (int r = 0; r < tp_.size(); ++r)
      columns.push_back(vocab_range(p.units[0].count, r, tp_.size()).count);
    s.enter = entrance();
    s.leave = [g = &tp_, columns](Tensor y) { return gather_columns(y, *g, columns); };
  }

  void loss(const std::string&, const Placement& p, nn::Shard& s) {
    s.head_loss = [enter = entrance(), g = &tp_, vocab = p.units[0].count](
                      const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                      const CrossEntropyOptions& options) {
      Shape shape = targets.shape();
      shape.push_back(hidden.dim(-1));
      return vocab_cross_entropy(reshape(enter(hidden), shape), weight, targets, vocab, *g,
                                 options);
    };
  }

  void heads(const std::string& name, const Placement& p, nn::Shard& s) {
    const UnitCut cut = cut_units(name, p.units, tp_);
    s.heads = {cut.ranges[0].first, p.units[0].count};
    if (p.communicates) s.enter = entrance();
  }

  void tokens(const std::string&, const Placement& p, nn::Shard& s) {
    s.tokens = {tp_.rank(), tp_.size()};
    if (p.communicates) s.enter = [g = &tp_](const Tensor& x) { return scatter_rows(x, *g); };
  }

  void own_parameters(const std::string& name, const Placement& p, nn::Shard&) {
    for (const auto& [parameter, units] : p.parameters) {
      const Tensor t = own(name, parameter.c_str());
      check(t.defined(), "parallelize: {} has no parameter {}", name, parameter);
      check(t.dim(0) == width_of(units), "parallelize: {}.{} must have {} rows by its rule, got {}",
            name, parameter, width_of(units), t.dim(0));
      keep(t, 0, cut_units(name, units, tp_).ranges);
    }
  }

  void norm(const std::string& name, const Placement& p, nn::Shard& s) {
    const Tensor weight = own(name, "weight");
    check_width(name, weight.dim(0), p);
    keep(weight, 0, cut_units(name, p.units, tp_).ranges);
    s.sum_row = [g = &tp_](Tensor part) {
      return copy_to_group(reduce_from_group(std::move(part), *g), *g);
    };
    s.row_ranks = tp_.size();
  }

  static bool covers_parts(const Placement& p) {
    return p.kind == Kind::whole || p.kind == Kind::placed;
  }

  // For parameters of no sharded layer: the first rule that matches a module they are in.
  void place_the_rest() {
    for (const auto& [impl, name] : names_) {
      if (std::find(placed_.begin(), placed_.end(), impl) != placed_.end()) continue;
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

  nn::Module& model_;
  ProcessGroup& tp_;
  const Plan& plan_;
  std::vector<Pattern> patterns_;
  std::optional<Pattern> gathers_again_;
  std::vector<bool> used_;
  std::vector<std::pair<const TensorImpl*, std::string>> names_;
  std::map<std::string, Tensor> tensors_;  // with all names of tied tensors
  std::vector<const TensorImpl*> placed_;
  Layout layout_;
};

}  // namespace

Layout parallelize(nn::Module& model, ProcessGroup& tp, const Plan& plan) {
  return Parallelizer(model, tp, plan).run();
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
