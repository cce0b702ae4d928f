#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "weft/autograd/tape.h"
#include "weft/core/error.h"
#include "weft/nn/lora_layer.h"
#include "weft/nn/walk.h"

namespace weft::nn {
namespace {

// A tensor with all its names; the first one is used in files.
struct Entry {
  Tensor tensor;
  std::vector<std::string> names;
};

// The matrices of merged adapters, which a weight includes already; `first` is the name of one.
struct Merged {
  std::unordered_set<const TensorImpl*> tensors;
  std::string first;
};

Merged merged_adapters(const Module& m) {
  Merged out;
  detail::for_each_module(m, [&](const std::string& name, Module& child) {
    const auto* const adapter = dynamic_cast<const Lora*>(&child);
    if (!adapter || !adapter->merged || name.empty()) return;
    if (out.first.empty()) out.first = name;
    out.tensors.insert({adapter->a.impl(), adapter->b.impl()});
  });
  return out;
}

std::vector<Entry> entries(const Module& m) {
  const Merged merged = merged_adapters(m);
  std::vector<Entry> out;
  std::unordered_map<const TensorImpl*, std::size_t> index;
  std::unordered_map<std::string, std::size_t> owners;
  detail::for_each_tensor(m, [&](const std::string& name, const Slot& slot) {
    if (slot.is_derived || merged.tensors.contains(slot.tensor->impl())) return;
    const auto [it, fresh] = index.emplace(slot.tensor->impl(), out.size());
    const auto [named, is_new] = owners.emplace(name, it->second);
    check(is_new || named->second == it->second,
          "state_dict: every name must be of one tensor, and visit() lists two as {}", name);
    if (fresh) out.push_back({*slot.tensor, {}});
    out[it->second].names.push_back(name);
  });
  return out;
}

// Whether two sources of a tensor of this dtype set the same bits; of shapes that differ another
// check speaks.
bool gives_same(const Tensor& a, const Tensor& b, DType dtype) {
  if (a.same(b) || a.is_meta() || b.is_meta() || !(a.shape() == b.shape())) return true;
  const auto values = [&](const Tensor& t) { return t.detach().to(kCpu).to(dtype).contiguous(); };
  const Tensor x = values(a), y = values(b);
  return x.numel() == 0 ||
         std::memcmp(x.raw(), y.raw(), static_cast<std::size_t>(x.numel()) * size_of(dtype)) == 0;
}

// "a, b, c and 12 more"
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::string out;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i)
    out += (i ? ", " : "") + names[i];
  if (names.size() > kShown) out += message(" and {} more", names.size() - kShown);
  return out;
}

std::string problems(const std::vector<std::string>& shapes, const LoadReport& report,
                     bool strict) {
  std::string out = listed(shapes);
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (!strict || names.empty()) return;
    if (!out.empty()) out += "; ";
    out += what + listed(names);
  };
  add("missing ", report.missing);
  add("unexpected ", report.unexpected);
  return out;
}

}  // namespace

StateDict Module::state_dict() const {
  StateDict out;
  for (const Entry& e : entries(*this)) out.emplace(e.names[0], e.tensor.detach());
  return out;
}

LoadReport Module::load_state_dict(const StateDict& state, bool strict) {
  for (const auto& [name, tensor] : state)
    check(tensor.defined(), "load_state_dict: {} must be a tensor, got null", name);
  // unmerge_lora() would subtract an adapter from a weight that never had it.
  const std::string merged = merged_adapters(*this).first;
  check(merged.empty(), "load_state_dict: the adapter {} is merged; call unmerge_lora() before",
        merged);
  const std::vector<Entry> all = entries(*this);
  LoadReport report;
  std::vector<std::string> shapes;
  std::vector<const Tensor*> sources;
  std::size_t used = 0;
  std::unordered_map<std::string, bool> known;
  for (const Entry& e : all) {
    const Tensor* source = nullptr;
    const std::string* first = nullptr;  // its name
    for (const std::string& name : e.names) {
      known[name] = true;
      const auto it = state.find(name);
      if (it == state.end()) continue;
      ++used;
      if (!source) {
        source = &it->second;
        first = &name;
      } else if (!(it->second.shape() == e.tensor.shape())) {
        shapes.push_back(
            message("{} must have shape {}, got {}", name, e.tensor.shape(), it->second.shape()));
      } else if (!gives_same(*source, it->second, e.tensor.dtype())) {
        shapes.push_back(message(
            "{} must have the values of {}, as both are one tensor of the model", name, *first));
      }
    }
    sources.push_back(source);
    if (!source) {
      report.missing.push_back(e.names[0]);
    } else if (!(source->shape() == e.tensor.shape())) {
      shapes.push_back(
          message("{} must have shape {}, got {}", e.names[0], e.tensor.shape(), source->shape()));
    } else if (is_floating(e.tensor.dtype()) && !is_floating(source->dtype())) {
      // Such as the codes of a quantised model, which are no values without their scales.
      shapes.push_back(
          message("{} must have a floating-point dtype, got {}", e.names[0], source->dtype()));
    }
  }
  if (used < state.size())
    for (const auto& [name, tensor] : state)
      if (!known.count(name)) report.unexpected.push_back(name);
  const std::string text = problems(shapes, report, strict);
  check(text.empty(), "load_state_dict: {}", text);

  for (std::size_t i = 0; i < all.size(); ++i)
    check(!sources[i] || !all[i].tensor.is_meta() || sources[i]->is_meta(),
          "load_state_dict: {} is on device meta and holds no values; give the model memory with "
          "to_empty() or materialise()",
          all[i].names[0]);
  const NoGradGuard off;  // parameters may belong to a recording that the caller has abandoned
  for (std::size_t i = 0; i < all.size(); ++i)
    if (sources[i]) all[i].tensor.copy_(*sources[i]);
  return report;
}

}  // namespace weft::nn
