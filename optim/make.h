#pragma once
#include <memory>
#include <variant>

#include "weft/optim/adamw.h"
#include "weft/optim/sgd.h"

namespace weft::optim {

/// The options of any optimizer. Add a new optimizer here and in make().
using AnyOptions = std::variant<AdamWOptions, SgdOptions>;

/// Throws Error where the optimizer's constructor does.
inline std::unique_ptr<Optimizer> make(NamedTensors parameters, const AdamWOptions& options) {
  return std::make_unique<AdamW>(std::move(parameters), options);
}
inline std::unique_ptr<Optimizer> make(NamedTensors parameters, const SgdOptions& options) {
  return std::make_unique<Sgd>(std::move(parameters), options);
}
inline std::unique_ptr<Optimizer> make(NamedTensors parameters, const AnyOptions& options) {
  return std::visit([&](const auto& o) { return make(std::move(parameters), o); }, options);
}

}  // namespace weft::optim
