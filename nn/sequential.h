#pragma once
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "weft/nn/child.h"

namespace weft::nn {

/// Modules and functions, each applied to the output of the one before.
///
///   nn::Sequential net(nn::Linear(784, 128), [](const Tensor& x) { return relu(x); },
///                      nn::Dropout(0.1), nn::Linear(128, 10));
///   Tensor y = net(x);
///
/// Tensors are named by position as in PyTorch, "0.weight" and "3.weight" here; a function counts
/// as a position. Items are taken by value: pass a named module with std::move().
struct Sequential : Module {
  Sequential() = default;
  template <class... Items>
  explicit Sequential(Items... items) {
    items_.reserve(sizeof...(items));
    (add(std::move(items)), ...);
  }
  /// Appends a module, or a function from Tensor to Tensor.
  template <class Item>
  void add(Item item) {
    static_assert(std::is_convertible_v<decltype(item(std::declval<const Tensor&>())), Tensor>,
                  "nn::Sequential: each item must give a Tensor for a Tensor");
    if constexpr (std::is_base_of_v<Module, Item>)
      items_.push_back({std::move(item), {}, [](Module& m, const Tensor& x) -> Tensor {
                          return static_cast<Item&>(m)(x);
                        }});
    else
      items_.push_back({{}, std::move(item), nullptr});
  }

  Tensor operator()(Tensor x) const;
  /// Number of modules and functions.
  std::size_t size() const { return items_.size(); }
  /// The module at a position, as an M:  net.at<nn::Linear>(3).weight
  /// Throws Error if there is none, or one of another type.
  template <class M>
  M& at(std::size_t i) const {
    M* const found = dynamic_cast<M*>(module_at(i));
    if (!found) throw_not_there(i);
    return *found;
  }
  void visit(Visitor& v) override;
  std::string describe() const override { return "Sequential"; }

 private:
  struct Item {
    Child<Module> module;  ///< null for a function
    std::function<Tensor(const Tensor&)> function;
    Tensor (*call)(Module& module, const Tensor& x);
  };
  Module* module_at(std::size_t i) const;
  [[noreturn]] void throw_not_there(std::size_t i) const;
  std::vector<Item> items_;
};

}  // namespace weft::nn
