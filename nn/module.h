#pragma once
#include <concepts>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "weft/core/named_tensor.h"
#include "weft/nn/init.h"
#include "weft/nn/unlisted.h"

namespace weft::nn {

class Module;
template <class T>
class Child;
struct Shard;

/// One tensor of a module, as visit() passes it. A plain Tensor converts to a parameter.
struct Slot {
  Slot(Tensor& t) : tensor(&t) {}
  Tensor* tensor;
  std::optional<Init> init = {};  ///< null: nn::init() refuses the parameter
  bool is_buffer = false;         ///< no gradient, ignored by optimizers
  bool is_derived = false;        ///< computed from the configuration: not in state_dict()
  bool keeps_dtype = false;       ///< to(DType) does not convert it
};
/// State that is not trained: counters, running statistics.
Slot buffer(Tensor& t);
/// A table that Module::fill_tables() can recompute, like the angles of RoPE.
Slot table(Tensor& t);
/// A parameter or buffer that to(DType) does not convert.
Slot pinned(Slot slot);

/// Receives the members of a module, by name. Null tensors and absent children are skipped.
class Visitor {
 public:
  virtual ~Visitor() = default;
  void operator()(const char* name, Slot slot) {
    if (slot.tensor->defined()) on_tensor(name, slot);
  }
  void operator()(const char* name, Slot slot, const Init& init) {
    slot.init = init;
    (*this)(name, slot);
  }
  template <std::derived_from<Module> M>
  void operator()(const char* name, M& child) {
    visit_child(name, child, sizeof(M));
  }
  /// A list: its modules are named name.0, name.1, ...
  template <class M>
  void operator()(const char* name, std::vector<M>& list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::string item = std::string(name) + '.' + std::to_string(i);
      (*this)(item.c_str(), list[i]);
    }
  }
  template <class M>
  void operator()(const char* name, std::unique_ptr<M>& child) {
    if (child) (*this)(name, *child);
  }
  template <class M>
  void operator()(const char* name, Child<M>& child) {
    if (child) visit_child(name, *child, child.bytes());
  }
  template <class M>
  void operator()(const char* name, std::optional<M>& child) {
    if (child) (*this)(name, *child);
  }

 protected:
  virtual void on_tensor(const char* name, const Slot& slot) = 0;
  virtual void on_module(const char* name, Module& child) = 0;
  /// In on_module(): the size of the child's class, as far as the compiler knows it.
  std::size_t child_bytes() const { return child_bytes_; }

 private:
  void visit_child(const char* name, Module& child, std::size_t bytes) {
    child_bytes_ = bytes;
    on_module(name, child);
  }
  std::size_t child_bytes_ = 0;
};

/// The names that load_state_dict() could not match.
struct LoadReport {
  std::vector<std::string> missing;     ///< in the model, not in the dictionary
  std::vector<std::string> unexpected;  ///< in the dictionary, not in the model
};

/// Base class of everything with parameters: ordinary members, and a visit() that lists them.
///
///   struct TwoLayers : nn::Module {
///     nn::Linear up, down;
///     TwoLayers() : up(8, 32), down(32, 8) {}
///     Tensor operator()(const Tensor& x) const { return down(gelu(up(x))); }
///     void visit(nn::Visitor& v) override {
///       v("up", up);
///       v("down", down);
///     }
///   };
///
/// Modules move; nn::clone() copies, and any other copy throws Error. After an assignment
/// (`head.weight = embed.weight`) two modules share a parameter. A shared tensor is listed once,
/// under its first name.
class Module {
 public:
  Module() = default;
  virtual ~Module() { detail::release_at_end(); }
  Module(Module&&) = default;
  Module& operator=(Module&&) = default;
  Module& operator=(const Module&) = delete;

  /// Passes every tensor and child to v by name, always in the same order.
  virtual void visit(Visitor& v) = 0;
  /// One line for the printed tree: "Linear(768 -> 3072)".
  virtual std::string describe() const { return "Module"; }
  /// The members of `shard` that this module uses, as a set of Shard::Member.
  virtual unsigned shard_members() const { return 0; }
  /// Whether backward reads the parameters of this module. That of an embedding does not: with
  /// sharded parameters its table is gathered for forward only.
  virtual bool backward_reads_parameters() const { return true; }
  /// Recomputes in place the tables that depend only on the configuration.
  virtual void fill_tables() {}

  std::vector<Tensor> parameters() const;
  NamedTensors named_parameters() const;
  /// Buffers with their names, including derived tables.
  NamedTensors buffers() const;
  std::int64_t parameter_count() const;

  /// Parameters and buffers by name; the handles share memory with the model. Adapters that
  /// merge_lora() has added to a weight are left out.
  /// Throws Error if visit() lists two tensors under one name.
  StateDict state_dict() const;
  /// Copies values into the model's own memory, converting the dtype. A tied parameter may be given
  /// under any of its names.
  /// Throws Error if a shape differs, also under a tied parameter's other name, if the names of a
  /// tied parameter have different values, a tensor is null, integers are given for floating-point
  /// values, or values for a model on meta, if an adapter is merged; with `strict` also if a name
  /// is missing or unexpected.
  LoadReport load_state_dict(const StateDict& state, bool strict = true);

  /// Sets training mode, which enables dropout, for this module and its children.
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }
  /// Freezes every parameter of this module and its children (false), or trains them again. The
  /// tape skips the ops that lead to frozen parameters only; optimizers leave those unchanged,
  /// except by a gradient that exists already: clear it with zero_grad().
  void set_requires_grad(bool on = true);
  /// Drops every grad() and zeroes every main_grad().
  void zero_grad();
  /// Converts dtype or device inside the same tensors: ties and handles stay valid. Gradients are
  /// dropped. Create the optimizer afterwards: its states do not follow.
  void to(DType dtype);
  void to(Device device);

  /// stream_of() the dotted name that assign_names() gave this module; 0 before it.
  std::uint64_t stream() const { return stream_; }
  /// stream(), for the key of random numbers.
  /// Throws Error in a RandomScope if the module has no name: all such modules would draw the same.
  std::uint64_t random_stream() const;

  /// How this module is sharded over ranks; null: it is not. A parallel plan sets it.
  std::shared_ptr<const Shard> shard;

 protected:
  /// For nn::clone(): a plain copy would share the parameters.
  Module(const Module& other);

 private:
  friend void assign_names(Module& root);
  bool training_ = true;
  std::uint64_t stream_ = 0;
};

/// Gives every module its dotted name relative to `root`, the key of its dropout. Gpt(), init(),
/// materialise() and to_empty() call it; call it on other models before training with dropout in a
/// RandomScope.
void assign_names(Module& root);

/// The tree with shapes, parameter counts and dtypes.
std::string to_string(const Module& m);
std::ostream& operator<<(std::ostream& out, const Module& m);

/// Modules constructed on this thread in this scope get tensors of this device and dtype.
class DeviceScope {
 public:
  explicit DeviceScope(Device device, DType dtype = DType::f32);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;

 private:
  Device device_;
  DType dtype_;
};
Device default_device();
DType default_dtype();

/// A new tensor of Category::parameter that requires a gradient, from the running random counter.
Tensor make_parameter(const Shape& shape, const Init& init, DType dtype = default_dtype(),
                      Device device = default_device());

/// The named_parameters() that require a gradient: all but the frozen ones.
NamedTensors trainable_parameters(const Module& module);

/// named_parameters() for an optimizer of the whole module.
/// Throws Error if visit() omits a member: a parameter in the memory of one of the modules that
/// make_parameter() created on this thread, that requires a gradient, and that no visit() of any
/// module has listed. Not found: members in a std::vector or behind a pointer that visit() omits,
/// members of a class that only the caller's base class names, and tensors made another way. See
/// compare_leaves() in nn/leaves.h.
template <std::derived_from<Module> M>
NamedTensors trained_parameters(const M& module) {
  return detail::trained_parameters(module, sizeof(M));
}

namespace detail {
/// While one exists, this thread may copy modules.
class CopyScope {
 public:
  CopyScope();
  ~CopyScope();
  CopyScope(const CopyScope&) = delete;

 private:
  bool outer_;
};
/// Gives each tensor that visit() lists its own memory. Ties remain.
/// Throws Error if the copy has a tensor in common with the original, through a pointer.
void separate_tensors(const Module& original, Module& copy);
void check_class(const Module& module, const std::type_info& known);
}  // namespace detail

/// A deep copy: the tensors that visit() lists have their own memory and the same ties and dtypes;
/// names, training flags and every other member are copied as C++ copies them. A tensor that
/// visit() does not list is shared with the original. A sharded module gives a sharded one.
/// Throws Error if M is not the class of the module, or a listed tensor is behind a pointer.
template <class M>
M clone(const M& module) {
  static_assert(std::is_copy_constructible_v<M>,
                "nn::clone: every member must be copyable. In place of a std::unique_ptr<T> to a "
                "module use nn::Child<T>, a std::optional<T> or a T");
  detail::check_class(module, typeid(M));
  const detail::CopyScope copies;
  M copy(module);
  detail::separate_tensors(module, copy);
  return copy;
}

}  // namespace weft::nn
