#include "weft/distributed/parallelize.h"

#include <algorithm>
#include <optional>

#include "weft/autograd/linear.h"
#include "weft/autograd/tape.h"
#include "weft/autograd/view.h"
#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/core/pattern.h"
#include "weft/distributed/comm_ops.h"
#include "weft/distributed/unit_cut.h"
#include "weft/distributed/vocab.h"
#include "weft/nn/walk.h"

namespace weft::distributed {
namespace {

using Kind = Placement::Kind;
class Parallelizer {
 public:
  Parallelizer(nn::Module& model, ProcessGroup& tp, const Plan& plan)
      : model_(model), tp_(tp), plan_(plan) {
    for (const Plan::Rule& rule : plan.rules) patterns_.push_back(compile_pattern(rule.pattern));
    used_.assign(plan.rules.size(), false);
    nn::detail::for_each_distinct_tensor(model, [&](const std::string& name, const nn::Slot& slot) {
      if (slot.is_buffer) return;
      names_.emplace_back(slot.tensor->impl(), name);
      layout_[name].part.whole = slot.tensor->shape();
    });
  }

  Layout run() {
    nn::detail::for_each_module(model_, [&](const std::string& name, nn::Module& m) {
      const int rule = rule_of(name);
      if (rule < 0) return;
      const Placement& p = plan_.rules[static_cast<std::size_t>(rule)].placement;
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
      if (std::regex_match(name, patterns_[i])) return static_cast<int>(i);
    return -1;
  }

  void place(const std::string& name, nn::Module& m, const Placement& p) {
    auto* const linear = dynamic_cast<nn::Linear*>(&m);
    if (linear && p.kind == Kind::column) return column(name, *linear, p);
    if (linear && p.kind == Kind::row) return row(name, *linear, p);
    if (p.kind == Kind::vocabulary) {
      if (linear) return head(*linear, p);
      if (auto* e = dynamic_cast<nn::Embedding*>(&m)) return table(*e, p);
      if (auto* l = dynamic_cast<nn::CrossEntropyLoss*>(&m)) return loss(*l, p);
    }
    if (p.kind == Kind::heads) {
      if (auto* a = dynamic_cast<nn::Attention*>(&m)) return heads(name, a->part_of_heads, p);
      if (auto* a = dynamic_cast<nn::Mla*>(&m)) {
        if (p.communicates && tp_.size() > 1) a->boundary = entrance();
        return heads(name, a->part_of_heads, p);
      }
    }
    if (p.kind == Kind::tokens)
      if (auto* gpt = dynamic_cast<nn::Gpt*>(&m)) return tokens(*gpt, p);
    check(false, "parallelize: the rule for {} does not fit a {}",
          name.empty() ? "the model" : name, m.describe());
  }

  ParameterLayout& layout_of(const Tensor& t) {
    const auto found = std::find_if(names_.begin(), names_.end(),
                                    [&](const auto& n) { return n.first == t.impl(); });
    placed_.push_back(t.impl());
    return layout_.at(found->second);
  }

  /// Null when it was cut under another name: a tied weight.
  ParameterLayout* keep(const Tensor& t, int axis, const UnitCut::Ranges& ranges) {
    if (std::find(placed_.begin(), placed_.end(), t.impl()) != placed_.end()) return nullptr;
    ParameterLayout& layout = layout_of(t);
    if (tp_.size() == 1) return &layout;
    layout.part.cuts = {{axis, ranges}};
    layout.tp_cut = true;
    const CategoryScope category(Category::parameter);
    const Tensor fresh = Tensor::empty(nn::shape_of(layout.part), t.dtype(), t.device());
    if (!t.is_meta()) {
      const NoGradGuard off;
      const Tensor flat = t.detach().alias({t.numel()}, {1}, 0);
      nn::for_each_run(layout.part, [&](std::int64_t whole, std::int64_t own, std::int64_t count) {
        fresh.alias({count}, {1}, own).copy_(flat.alias({count}, {1}, whole));
      });
    }
    nn::detail::replace_storage(t, fresh);
    return &layout;
  }

  void check_width(const std::string& name, std::int64_t got, const Placement& p) const {
    check(got == width_of(p.units), "parallelize: {} must have {} features by its rule, got {}",
          name, width_of(p.units), got);
  }

  std::shared_ptr<const nn::Boundary> entrance() const {
    nn::Boundary b;
    ProcessGroup* const g = &tp_;
    if (plan_.sequence)
      b.before = [g](const Tensor& x) { return gather_rows(x, *g); };
    else
      b.before = [g](const Tensor& x) { return copy_to_group(x, *g); };
    return std::make_shared<const nn::Boundary>(std::move(b));
  }

  void column(const std::string& name, nn::Linear& l, const Placement& p) {
    check_width(name, l.weight.dim(0), p);
    const UnitCut cut = cut_units(name, p.units, tp_);
    for (const Tensor& t : {l.weight, l.bias})
      if (t)
        if (ParameterLayout* layout = keep(t, 0, cut.ranges); layout && !cut.shared.empty()) {
          layout->shared_from = cut.shared_from;
          layout->shared_by = cut.sharers;
        }
    if (tp_.size() == 1) return;
    nn::Boundary b;
    const bool overlaps = p.communicates && plan_.overlap != Overlap::none;
    if (p.communicates && !overlaps) b = *entrance();
    if (!cut.shared.empty())
      b.product = [g = &tp_, shared = std::make_shared<const std::vector<SharedRows>>(cut.shared),
                   all = cut.all_shared,
                   overlaps](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        const Tensor own = bias ? share_rows(bias, *g, shared, all) : bias;
        const Tensor used = share_rows(weight, *g, shared, all);
        return overlaps ? gather_linear(x, used, own, *g) : linear(x, used, own);
      };
    else if (overlaps)
      b.product = [g = &tp_](const Tensor& x, const Tensor& weight, const Tensor& bias) {
        return gather_linear(x, weight, bias, *g);
      };
    if (b.before || b.product) l.boundary = std::make_shared<const nn::Boundary>(std::move(b));
  }

  void row(const std::string& name, nn::Linear& l, const Placement& p) {
    check_width(name, l.weight.dim(1), p);
    keep(l.weight, 1, cut_units(name, p.units, tp_).ranges);
    if (l.bias) layout_of(l.bias).tp_partial = plan_.sequence && tp_.size() > 1;
    if (tp_.size() == 1) return;
    nn::Boundary b;
    ProcessGroup* const g = &tp_;
    if (plan_.overlap != Overlap::none)
      b.product = [g, form = plan_.overlap](const Tensor& x, const Tensor& weight,
                                            const Tensor& bias) {
        const Tensor y = linear_scatter(x, weight, *g, form);
        return bias ? add(y, bias) : y;
      };
    else if (plan_.sequence)
      b.after = [g](Tensor y) { return reduce_scatter_rows(y, *g); };
    else
      b.after = [g](Tensor y) { return reduce_from_group(std::move(y), *g); };
    l.boundary = std::make_shared<const nn::Boundary>(std::move(b));
  }

  UnitCut::Ranges vocabulary(const Placement& p) const {
    const VocabRange r = vocab_range(p.units[0].count, tp_.rank(), tp_.size());
    return {{r.first, r.first + r.count}};
  }

  void table(nn::Embedding& e, const Placement& p) {
    keep(e.weight, 0, vocabulary(p));
    if (tp_.size() == 1) return;
    nn::Boundary b;
    ProcessGroup* const g = &tp_;
    b.product = [g, vocab = p.units[0].count](const Tensor& ids, const Tensor& weight,
                                              const Tensor&) {
      return vocab_embedding(weight, ids, vocab, *g);
    };
    if (p.communicates)
      b.after = [g](Tensor y) { return reduce_scatter_rows(y, *g); };
    else
      b.after = [g](Tensor y) { return reduce_from_group(std::move(y), *g); };
    e.boundary = std::make_shared<const nn::Boundary>(std::move(b));
  }

  // For whoever wants all logits; the loss goes by the weight.
  void head(nn::Linear& l, const Placement& p) {
    check(!l.bias, "parallelize: a head that is cut over ranks must have no bias");
    keep(l.weight, 0, vocabulary(p));
    if (tp_.size() == 1) return;
    Rows columns;
    for (int r = 0; r < tp_.size(); ++r)
      columns.push_back(vocab_range(p.units[0].count, r, tp_.size()).count);
    nn::Boundary b = *entrance();
    b.after = [g = &tp_, columns](Tensor y) { return gather_columns(y, *g, columns); };
    l.boundary = std::make_shared<const nn::Boundary>(std::move(b));
  }

  void loss(nn::CrossEntropyLoss& l, const Placement& p) {
    if (tp_.size() == 1) return;
    l.boundary = std::make_shared<const nn::HeadLoss>(
        [in = entrance(), g = &tp_, vocab = p.units[0].count](
            const Tensor& hidden, const Tensor& weight, const Tensor& targets,
            const CrossEntropyOptions& options) {
          Shape shape = targets.shape();
          shape.push_back(hidden.dim(-1));
          return vocab_cross_entropy(reshape(in->before(hidden), shape), weight, targets, vocab, *g,
                                     options);
        });
  }

  void heads(const std::string& name, std::optional<nn::PartOfHeads>& part, const Placement& p) {
    if (tp_.size() == 1) return;
    const UnitCut cut = cut_units(name, p.units, tp_);
    part = nn::PartOfHeads{cut.ranges[0].first, p.units[0].count};
  }

  void tokens(nn::Gpt& gpt, const Placement& p) {
    if (tp_.size() == 1) return;
    gpt.split = nn::TokenSplit{tp_.rank(), tp_.size()};
    if (!p.communicates) return;
    nn::Boundary b;
    b.before = [g = &tp_](const Tensor& x) { return scatter_rows(x, *g); };
    gpt.boundary = std::make_shared<const nn::Boundary>(std::move(b));
  }

  // Parameters of no cut layer: the first rule about a module that they are in.
  void place_the_rest() {
    for (const auto& [impl, name] : names_) {
      if (std::find(placed_.begin(), placed_.end(), impl) != placed_.end()) continue;
      int rule = -1;
      for (std::size_t end = name.rfind('.'); rule < 0 && end != std::string::npos && end > 0;
           end = name.rfind('.', end - 1)) {
        rule = rule_of(name.substr(0, end));
        if (rule >= 0 && plan_.rules[static_cast<std::size_t>(rule)].placement.kind != Kind::whole)
          rule = -1;  // about the layer, and not about this parameter
      }
      check(rule >= 0, "parallelize: no rule of the plan is about {}", name);
      used_[static_cast<std::size_t>(rule)] = true;
      layout_.at(name).tp_partial =
          plan_.rules[static_cast<std::size_t>(rule)].placement.partial && tp_.size() > 1;
    }
  }

  nn::Module& model_;
  ProcessGroup& tp_;
  const Plan& plan_;
  std::vector<std::regex> patterns_;
  std::vector<bool> used_;
  std::vector<std::pair<const TensorImpl*, std::string>> names_;
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

nn::Parts parts(const Layout& layout) {
  nn::Parts out;
  for (const auto& [name, p] : layout)
    if (!p.part.cuts.empty()) out[name] = p.part;
  return out;
}

}  // namespace weft::distributed
