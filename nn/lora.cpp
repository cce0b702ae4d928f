#include "weft/nn/lora.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "weft/autograd/elementwise.h"
#include "weft/autograd/tape.h"
#include "weft/core/error.h"
#include "weft/core/pattern.h"
#include "weft/nn/linear.h"
#include "weft/nn/moe.h"
#include "weft/nn/walk.h"

namespace weft::nn {
namespace {

/// A target of LoraOptions.
struct Target {
  explicit Target(const std::string& text)
      : words(text), pattern("lora", "(.*\\.)?(" + text + ")") {}
  std::string words;
  Pattern pattern;
  bool used = false;
};

// The end of the target that begins at `at`: a comma in brackets, as in "q{1,2}", is part of it.
std::size_t end_of_target(const std::string& list, std::size_t at) {
  int open = 0;
  for (; at < list.size(); ++at) {
    const char c = list[at];
    if (c == ',' && open == 0) break;
    open += c == '(' || c == '[' || c == '{';
    open -= c == ')' || c == ']' || c == '}';
    at += c == '\\';  // what follows is no bracket
  }
  return std::min(at, list.size());
}

std::vector<Target> targets_of(const std::string& list) {
  std::vector<Target> out;
  for (std::size_t begin = 0; !list.empty() && begin <= list.size();) {
    const std::size_t end = end_of_target(list, begin);
    check(end > begin, "lora: targets must be names with a comma between, got \"{}\"", list);
    const std::string text = list.substr(begin, end - begin);
    Pattern("lora: targets", text);  // before it is a part of another, so that the error shows it
    out.emplace_back(text);
    begin = end + 1;
  }
  return out;
}

bool is_head(const std::string& name) { return name == "head" || name.ends_with(".head"); }

// Whether a part of the Linear `layer` gets an adapter.
bool wants(std::vector<Target>& targets, const std::string& layer, const std::string& part) {
  bool any = targets.empty() && !is_head(layer);
  for (Target& t : targets)
    if (t.pattern.matches(part) || t.pattern.matches(layer)) any = t.used = true;
  return any;
}

// Says what else a target that no Linear matches could mean.
[[noreturn]] void refuse(const Module& model, const Target& target) {
  std::set<std::string> ends;
  for (const LoraPlace& p : lora_places(model)) ends.insert(p.name.substr(p.name.rfind('.') + 1));
  std::string list;
  for (const std::string& end : ends) list += (list.empty() ? "" : ", ") + end;
  std::string other;
  const auto compare = [&](const std::string& name, const std::string& kind) {
    if (other.empty() && target.pattern.matches(name)) other = name + kind;
  };
  detail::for_each_module(
      model, [&](const std::string& name, Module& m) { compare(name, " (" + m.describe() + ")"); });
  detail::for_each_tensor(model, [&](const std::string& name, const Slot&) { compare(name, ""); });
  if (!other.empty())
    throw Error(message(
        "lora: {} is no Linear and cannot have an adapter; those that can end in {}", other, list));
  throw Error(
      message("lora: the target \"{}\" matches no layer; there are {}", target.words, list));
}

/// Calls f(name, linear) for every Linear with a weight.
template <class F>
void for_each_linear(const Module& model, const F& f) {
  detail::for_each_module(model, [&](const std::string& name, Module& m) {
    if (auto* const linear = dynamic_cast<Linear*>(&m); linear && linear->weight.defined())
      f(name, *linear);
  });
}

std::string joined(const std::string& module, const std::string& name) {
  return module.empty() ? name : name.empty() ? module : module + '.' + name;
}

/// Calls f(part, first row, rows) for each part of a Linear, or for all of it.
template <class F>
void for_each_part(const Linear& linear, const F& f) {
  if (linear.parts.empty()) return f(std::string(), std::int64_t{0}, linear.weight.dim(0));
  std::int64_t first = 0;
  for (const LinearPart& p : linear.parts) {
    f(p.name, first, p.rows);
    first += p.rows;
  }
}

// The weights that two layers share. One layer may have two names.
std::set<const TensorImpl*> tied_tensors(const Module& model) {
  std::map<const TensorImpl*, const Tensor*> seen;
  std::set<const TensorImpl*> tied;
  detail::for_each_tensor(model, [&](const std::string&, const Slot& slot) {
    const auto [it, fresh] = seen.emplace(slot.tensor->impl(), slot.tensor);
    if (!fresh && it->second != slot.tensor) tied.insert(it->first);
  });
  return tied;
}

// weight += sign * adapters.
void change_weights(Module& model, bool merge) {
  const std::set<const TensorImpl*> tied = tied_tensors(model);
  const auto adapted = [&](const auto& f) {
    for_each_linear(model, [&](const std::string& name, Linear& l) {
      if (!l.lora.empty() && l.lora[0].merged != merge) f(name, l);
    });
  };
  adapted([&](const std::string& name, const Linear& l) {
    check(!tied.contains(l.weight.impl()),
          "lora: the adapter of {} cannot be merged, as its weight is another layer's too", name);
  });
  adapted([&](const std::string&, Linear& l) {
    for_each_part(l, [&](const std::string& part, std::int64_t first, std::int64_t rows) {
      for (Lora& adapter : l.lora) {
        if (adapter.part != part) continue;
        add_lora_product(l.weight.narrow(0, first, rows), adapter.a, adapter.b,
                         merge ? adapter.scale : -adapter.scale);
        adapter.merged = merge;
      }
    });
  });
}

}  // namespace

void add_lora_product(const Tensor& weight, const Tensor& a, const Tensor& b, double scale) {
  const NoGradGuard off;
  const DType sums = weight.dtype() == DType::f64 ? DType::f64 : DType::f32;
  weight.copy_(add(weight.to(sums), lora_product(a.to(sums), b.to(sums), scale)));
}

double LoraOptions::scale() const {
  check(rank >= 1, "lora: rank must be at least 1, got {}", rank);
  const auto r = static_cast<double>(rank);
  return alpha_or_default() / (rslora ? std::sqrt(r) : r);
}

std::vector<LoraPlace> lora_places(const Module& model) {
  const std::set<const TensorImpl*> tied = tied_tensors(model);
  std::vector<LoraPlace> out;
  for_each_linear(model, [&](const std::string& name, const Linear& l) {
    for_each_part(l, [&](const std::string& part, std::int64_t first, std::int64_t rows) {
      out.push_back({joined(name, part), joined(name, Lora::name_of(part)), joined(name, "weight"),
                     first, rows, l.weight.dim(1), tied.contains(l.weight.impl())});
    });
  });
  return out;
}

void add_lora(Module& model, const LoraOptions& o) {
  check_fields("lora", o);
  o.scale();
  std::vector<Target> targets = targets_of(o.targets);
  struct Place {
    Linear* linear;
    std::string part;
    std::int64_t rows;
  };
  std::vector<Place> places;
  std::set<const Linear*> seen;  // a layer under two names gets one adapter
  for_each_linear(model, [&](const std::string& name, Linear& l) {
    if (!seen.insert(&l).second) return;
    check(l.lora.empty(), "lora: {} has an adapter already", name);
    check(!l.shard, "lora: {} is sharded; add adapters before parallelize()", name);
    for_each_part(l, [&](const std::string& part, std::int64_t, std::int64_t rows) {
      if (wants(targets, name, joined(name, part))) places.push_back({&l, part, rows});
    });
  });
  for (const Target& t : targets)
    if (!t.used) refuse(model, t);
  check(!places.empty(), "lora: the model has no Linear");
  // A MoE gives its layers tokens without rows, by which a rank's masks are numbered.
  if (o.dropout > 0)
    detail::for_each_module(model, [&](const std::string& name, Module& m) {
      if (!dynamic_cast<MoE*>(&m)) return;
      for_each_linear(m, [&](const std::string& inner, Linear& l) {
        check(std::none_of(places.begin(), places.end(),
                           [&](const Place& p) { return p.linear == &l; }),
              "lora: dropout does not exist yet for {}, a layer of a mixture of experts",
              joined(name, inner));
      });
    });
  model.set_requires_grad(false);
  for (const Place& p : places) {
    const Tensor& w = p.linear->weight;
    p.linear->lora.emplace_back(p.part, w.dim(1), p.rows, o, w.dtype(), w.device());
    p.linear->lora.back().train(p.linear->is_training());
  }
  assign_names(model);
}

NamedTensors lora_parameters(const Module& model) {
  std::set<const TensorImpl*> own;
  for_each_linear(model, [&](const std::string&, const Linear& l) {
    for (const Lora& adapter : l.lora) own.insert({adapter.a.impl(), adapter.b.impl()});
  });
  NamedTensors out;
  for (NamedTensor& p : model.named_parameters())
    if (own.contains(p.tensor.impl())) out.push_back(std::move(p));
  return out;
}

void merge_lora(Module& model) { change_weights(model, true); }
void unmerge_lora(Module& model) { change_weights(model, false); }

}  // namespace weft::nn
