#include "weft/nn/sequential.h"

#include "weft/core/error.h"

namespace weft::nn {

Tensor Sequential::operator()(Tensor x) const {
  for (const Item& item : items_) x = item.call ? item.call(*item.module, x) : item.function(x);
  return x;
}

void Sequential::visit(Visitor& v) {
  for (std::size_t i = 0; i < items_.size(); ++i) v(std::to_string(i).c_str(), items_[i].module);
}

Module* Sequential::module_at(std::size_t i) const {
  return i < items_.size() ? items_[i].module.get() : nullptr;
}

void Sequential::throw_not_there(std::size_t i) const {
  Module* const there = module_at(i);
  check(false, "sequential: item {} of {} must be of the requested type, got {}", i, size(),
        there        ? there->describe()
        : i < size() ? "a function"
                     : "none");
  __builtin_unreachable();
}

}  // namespace weft::nn
