#pragma once
#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "weft/nn/module.h"

namespace weft::nn {

/// A module owned through its base class T, as a std::unique_ptr<T> owns one, that nn::clone() can
/// copy:
///
///   std::vector<nn::Child<Layer>> layers;
///   layers.push_back(Gate(8));  // struct Gate : Layer
///   v("layers", layers);        // in visit()
template <class T>
class Child {
 public:
  Child() = default;  // null
  template <std::derived_from<T> M>
  Child(M module) : Child(std::make_unique<M>(std::move(module))) {}
  template <std::derived_from<T> M>
  Child(std::unique_ptr<M> module)
      : copy_(copied<M>), bytes_(sizeof(M)), module_(std::move(module)) {
    static_assert(!std::is_abstract_v<M>, "nn::Child must be made from the class to be copied");
    if (module_) detail::check_class(*module_, typeid(M));
  }
  Child(const Child& o)
      : copy_(o.copy_), bytes_(o.bytes_), module_(o.module_ ? o.copy_(*o.module_) : nullptr) {}
  Child(Child&&) noexcept = default;
  Child& operator=(Child&&) noexcept = default;

  T* get() const { return module_.get(); }
  T& operator*() const { return *module_; }
  T* operator->() const { return module_.get(); }
  explicit operator bool() const { return module_ != nullptr; }
  /// The size of the module's class.
  std::size_t bytes() const { return bytes_; }

 private:
  template <class M>
  static std::unique_ptr<T> copied(const T& from) {
    return std::make_unique<M>(static_cast<const M&>(from));
  }
  std::unique_ptr<T> (*copy_)(const T&) = nullptr;
  std::size_t bytes_ = 0;
  std::unique_ptr<T> module_;
};

}  // namespace weft::nn
