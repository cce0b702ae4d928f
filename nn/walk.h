#pragma once
#include <string>
#include <unordered_set>
#include <utility>

#include "weft/nn/module.h"
#include "weft/nn/unlisted.h"

namespace weft::nn::detail {

/// Calls on_module(name, module) for `root` (name "") and every module below it, and
/// on_tensor(name, slot) for each of their tensors, with full dotted names.
template <class OnTensor, class OnModule>
class Walker final : public Visitor {
 public:
  Walker(OnTensor on_tensor, OnModule on_module)
      : tensor_(std::move(on_tensor)), module_(std::move(on_module)) {}

  void start(Module& root) {
    release_unlisted();
    module_(prefix_, root);
    root.visit(*this);
  }

 protected:
  void on_tensor(const char* name, const Slot& slot) override {
    remove_unlisted(*slot.tensor);
    tensor_(prefix_ + name, slot);
  }
  void on_module(const char* name, Module& child) override {
    const std::size_t length = prefix_.size();
    prefix_ += name;
    module_(std::as_const(prefix_), child);
    prefix_ += '.';
    child.visit(*this);
    prefix_.resize(length);
  }

 private:
  std::string prefix_;
  OnTensor tensor_;
  OnModule module_;
};

template <class OnTensor>
void for_each_tensor(const Module& root, OnTensor f) {
  const auto ignore = [](const std::string&, Module&) {};
  Walker<OnTensor, decltype(ignore)>(std::move(f), ignore).start(const_cast<Module&>(root));
}

/// Each tensor once, under its first name.
template <class OnTensor>
void for_each_distinct_tensor(const Module& root, OnTensor f) {
  std::unordered_set<const TensorImpl*> seen;
  for_each_tensor(root, [&](const std::string& name, const Slot& slot) {
    if (seen.insert(slot.tensor->impl()).second) f(name, slot);
  });
}

template <class OnModule>
void for_each_module(const Module& root, OnModule f) {
  const auto ignore = [](const std::string&, const Slot&) {};
  Walker<decltype(ignore), OnModule>(ignore, std::move(f)).start(const_cast<Module&>(root));
}

/// Gives t the memory, dtype and shape of `fresh` inside the same TensorImpl: every handle to t
/// sees the change. Drops its gradients.
void replace_storage(const Tensor& t, const Tensor& fresh);

}  // namespace weft::nn::detail
