#include "weft/nn/module.h"

#include <ostream>
#include <unordered_map>
#include <unordered_set>

#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/nn/walk.h"

namespace weft::nn {
namespace {

struct Defaults {
  Device device = kCpu;
  DType dtype = DType::f32;
};
constinit thread_local Defaults defaults;
constinit thread_local bool copies_allowed = false;

Category category_of(const Slot& slot) {
  return slot.is_buffer ? Category::other : Category::parameter;
}

// Tables stay f32 unless the whole model computes in f64.
DType target_dtype(const Slot& slot, DType wanted) {
  const DType now = slot.tensor->dtype();
  if (slot.keeps_dtype || !is_compute(now)) return now;
  return slot.is_derived && wanted != DType::f64 ? DType::f32 : wanted;
}

std::string with_commas(std::int64_t n) {
  std::string s = std::to_string(n);
  for (int i = static_cast<int>(s.size()) - 3; i > 0; i -= 3)
    s.insert(static_cast<std::size_t>(i), 1, ',');
  return s;
}

}  // namespace

Slot buffer(Tensor& t) {
  Slot slot(t);
  slot.is_buffer = true;
  return slot;
}

Slot table(Tensor& t) {
  Slot slot = buffer(t);
  slot.is_derived = true;
  return slot;
}

Slot pinned(Slot slot) {
  slot.keeps_dtype = true;
  return slot;
}

void detail::replace_storage(const Tensor& t, const Tensor& fresh) {
  TensorImpl& to = *t.impl();
  const TensorImpl& from = *fresh.impl();
  from.storage->retain();
  to.storage->release();
  to.storage = from.storage;
  to.dtype = from.dtype;
  to.offset = from.offset;
  to.shape = from.shape;
  to.strides = from.strides;
  t.set_grad({});
  t.set_main_grad({});
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> out;
  for (NamedTensor& p : named_parameters()) out.push_back(std::move(p.tensor));
  return out;
}

NamedTensors Module::named_parameters() const {
  NamedTensors out;
  detail::for_each_distinct_tensor(*this, [&](const std::string& name, const Slot& slot) {
    if (!slot.is_buffer) out.push_back({name, *slot.tensor});
  });
  return out;
}

NamedTensors Module::buffers() const {
  NamedTensors out;
  detail::for_each_distinct_tensor(*this, [&](const std::string& name, const Slot& slot) {
    if (slot.is_buffer) out.push_back({name, *slot.tensor});
  });
  return out;
}

std::int64_t Module::parameter_count() const {
  std::int64_t n = 0;
  detail::for_each_distinct_tensor(*this, [&](const std::string&, const Slot& slot) {
    if (!slot.is_buffer) n += slot.tensor->numel();
  });
  return n;
}

void Module::train(bool on) {
  detail::for_each_module(*this, [on](const std::string&, Module& m) { m.training_ = on; });
}

void Module::set_requires_grad(bool on) {
  for (Tensor& p : parameters()) p.set_requires_grad(on);
}

void Module::zero_grad() {
  detail::for_each_distinct_tensor(
      *this, [](const std::string&, const Slot& slot) { slot.tensor->zero_grad(); });
}

void Module::to(DType dtype) {
  check(is_compute(dtype), "to: a module computes in f32, f64, bf16 or f16, got {}", dtype);
  detail::for_each_distinct_tensor(*this, [&](const std::string&, const Slot& slot) {
    const DType wanted = target_dtype(slot, dtype);
    if (wanted == slot.tensor->dtype()) return;
    const CategoryScope category(category_of(slot));
    detail::replace_storage(*slot.tensor, slot.tensor->detach().to(wanted));
  });
  detail::for_each_module(*this, [](const std::string&, Module& m) { m.fill_tables(); });
}

void Module::to(Device device) {
  detail::for_each_distinct_tensor(*this, [&](const std::string& name, const Slot& slot) {
    if (device == slot.tensor->device()) return;
    check(!slot.tensor->is_meta(),
          "to: {} is on device {} and has no values to move; use materialise()", name,
          slot.tensor->device());
    const CategoryScope category(category_of(slot));
    detail::replace_storage(*slot.tensor, slot.tensor->detach().to(device));
  });
}

NamedTensors trainable_parameters(const Module& module) {
  NamedTensors out = module.named_parameters();
  std::erase_if(out, [](const NamedTensor& p) { return !p.tensor.requires_grad(); });
  return out;
}

void assign_names(Module& root) {
  detail::for_each_module(root,
                          [](const std::string& name, Module& m) { m.stream_ = stream_of(name); });
}

std::string to_string(const Module& root) {
  std::string out;
  std::vector<std::string> open;  // the modules that enclose the current one
  std::unordered_map<const TensorImpl*, std::string> first_name;
  // Pops modules that do not contain `name`; returns the rest of the name.
  const auto enter = [&](const std::string& name) {
    const auto holds = [&](const std::string& m) { return m.empty() || name.starts_with(m + '.'); };
    while (!open.empty() && !holds(open.back())) open.pop_back();
    out.append(2 * open.size(), ' ');
    return open.empty() || open.back().empty() ? name : name.substr(open.back().size() + 1);
  };
  const auto on_module = [&](const std::string& name, Module& m) {
    const std::string label = enter(name);
    if (!label.empty()) out += label + ": ";
    out += m.describe();
    if (const std::int64_t n = m.parameter_count()) out += "  " + with_commas(n) + " parameters";
    out += '\n';
    open.push_back(name);
  };
  const auto on_tensor = [&](const std::string& name, const Slot& slot) {
    out += message("{} {} {}", enter(name), slot.tensor->shape(), slot.tensor->dtype());
    const auto [it, fresh] = first_name.emplace(slot.tensor->impl(), name);
    if (!fresh) out += ", the same as " + it->second;
    out += slot.is_buffer ? " (buffer)\n" : "\n";
  };
  detail::Walker(on_tensor, on_module).start(const_cast<Module&>(root));
  return out;
}

std::uint64_t Module::random_stream() const {
  if (stream_ == 0 && RandomScope::current())
    throw Error(
        message("module: in a RandomScope modules that draw random numbers must have names, call "
                "nn::assign_names(model), got none for {}",
                describe()));
  return stream_;
}

std::ostream& operator<<(std::ostream& out, const Module& m) { return out << to_string(m); }

DeviceScope::DeviceScope(Device device, DType dtype)
    : device_(defaults.device), dtype_(defaults.dtype) {
  defaults = {device, dtype};
}
DeviceScope::~DeviceScope() { defaults = {device_, dtype_}; }
Device default_device() { return defaults.device; }
DType default_dtype() { return defaults.dtype; }

Tensor make_parameter(const Shape& shape, const Init& init, DType dtype, Device device) {
  const CategoryScope category(Category::parameter);
  Tensor t = Tensor::empty(shape, dtype, device);
  // A constant draws no random number, so adding a bias does not change later weights.
  const bool draws = init.kind != Init::Kind::constant && !device.is_meta();
  init.fill(t, draws ? next_random_key() : RandomKey{});
  t.set_requires_grad();
  detail::add_unlisted(t);
  return t;
}

Module::Module(const Module& other)
    : shard(other.shard), training_(other.training_), stream_(other.stream_) {
  check(copies_allowed,
        "module: a copy would share the parameters of {}; copy it with nn::clone() or move it with "
        "std::move(), and declare the move constructor of a class with a destructor",
        other.describe());
}

void detail::check_class(const Module& module, const std::type_info& known) {
  check(typeid(module) == known,
        "clone: {} must be copied as its own class, got a reference to a base class; own it in an "
        "nn::Child",
        module.describe());
}

detail::CopyScope::CopyScope() : outer_(std::exchange(copies_allowed, true)) {}
detail::CopyScope::~CopyScope() { copies_allowed = outer_; }

void detail::separate_tensors(const Module& original, Module& copy) {
  std::unordered_set<const Tensor*> shared;
  for_each_tensor(original, [&](const std::string&, const Slot& s) { shared.insert(s.tensor); });
  for_each_tensor(copy, [&](const std::string& name, const Slot& slot) {
    check(!shared.contains(slot.tensor),
          "clone: {} must be a member of its module, got one behind a pointer, which the copy has "
          "too; own it in an nn::Child",
          name);
  });
  std::unordered_map<const TensorImpl*, Tensor> own;
  const NoGradGuard off;
  for_each_tensor(copy, [&](const std::string&, const Slot& slot) {
    Tensor& t = *slot.tensor;
    Tensor& mine = own[t.impl()];
    if (!mine.defined()) {
      const CategoryScope category(category_of(slot));
      mine = empty_like(t);
      mine.copy_(t.detach());
      mine.set_requires_grad(t.requires_grad());
      own.emplace(mine.impl(), mine);  // a member may be listed under two names
    }
    t = mine;
  });
}

}  // namespace weft::nn
