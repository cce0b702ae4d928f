#include "weft/distributed/fsdp_units.h"

#include <algorithm>
#include <unordered_map>

#include "weft/core/error.h"
#include "weft/nn/shard.h"

namespace weft::distributed {
namespace {

/// Lists the modules directly below a model.
class Children final : public nn::Visitor {
 public:
  std::vector<nn::Module*> all;

 protected:
  void on_tensor(const char* name, const nn::Slot& slot) override {
    check(slot.is_buffer, "fsdp: every parameter must be in a module below the model, got {}",
          name);
  }
  void on_module(const char*, nn::Module& child) override { all.push_back(&child); }
};

/// Modules in the order of visit() that share a unit.
struct Unit {
  std::size_t modules = 0;
  std::int64_t size = 0, largest = 0;  // elements, of all and of the largest module
  bool tied = false;                   // has a parameter that another module has too
};

Unit joined(const Unit& a, const Unit& b) {
  return {a.modules + b.modules, a.size + b.size, std::max(a.largest, b.largest), a.tied || b.tied};
}

// What is not of the largest module must be little: all of it is gathered with the module. Tied
// parameters are used more than once, and would bring the module along each time.
bool is_unit(const Unit& u) { return !u.tied && u.size - u.largest <= u.largest / 16; }

}  // namespace

std::vector<int> fsdp_units(nn::Module& model, const NamedTensors& parameters,
                            const std::vector<std::int64_t>& sizes) {
  check(model.shard_members() & nn::Shard::kBeforeUse,
        "fsdp: the model must call Shard::before_use, and {} does not", model.describe());
  std::unordered_map<const TensorImpl*, std::int64_t> size_of;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    size_of[parameters[i].tensor.impl()] = sizes.at(i);
  Children children;
  model.visit(children);
  std::unordered_map<const TensorImpl*, std::size_t> module_of;
  std::vector<Unit> modules;
  for (const nn::Module* child : children.all) {
    Unit own;
    for (const Tensor& p : child->parameters()) {
      const auto [found, fresh] = module_of.emplace(p.impl(), modules.size());
      if (fresh) {
        own.modules = 1;
        own.largest = own.size += size_of.at(p.impl());
      } else {
        modules[found->second].tied = own.tied = true;
      }
    }
    if (own.modules > 0) modules.push_back(own);
  }
  std::vector<Unit> units;
  for (const Unit& module : modules) {
    units.push_back(module);
    while (units.size() > 1 && is_unit(joined(units[units.size() - 2], units.back()))) {
      const Unit last = units.back();
      units.pop_back();
      units.back() = joined(units.back(), last);
    }
  }
  std::vector<int> unit_of_module;
  for (std::size_t u = 0; u < units.size(); ++u)
    unit_of_module.insert(unit_of_module.end(), units[u].modules, static_cast<int>(u));
  std::vector<int> out;
  for (const NamedTensor& p : parameters)
    out.push_back(unit_of_module[module_of.at(p.tensor.impl())]);
  return out;
}

}  // namespace weft::distributed
