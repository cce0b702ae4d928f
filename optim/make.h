#pragma once
#include <memory>
#include <utility>
#include <variant>

#include "weft/optim/adamw.h"
#include "weft/optim/sgd.h"

// Every optimizer by name: what a program that lets its user choose needs. A new optimizer is its
// own file and its lines here.
namespace weft::optim {

using AnyOptions = std::variant<AdamWOptions, SgdOptions>;

enum class Kind : std::uint8_t { adamw, sgd };
inline constexpr Word<Kind> kKindWords[] = {{"adamw", Kind::adamw}, {"sgd", Kind::sgd}};

/// What any optimizer may be told; each takes what it has a use for.
struct CommonOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  DType m_dtype = DType::f32, v_dtype = DType::f32;
  MasterWeights master_weights = MasterWeights::f32;
  Rounding rounding = Rounding::nearest;
  std::uint64_t seed = 0;
};

inline AnyOptions options_of(Kind kind, const CommonOptions& o) {
  switch (kind) {
    case Kind::sgd:
      return SgdOptions{.lr = o.lr,
                        .momentum = o.beta1,
                        .weight_decay = o.weight_decay,
                        .master_weights = o.master_weights,
                        .rounding = o.rounding,
                        .seed = o.seed};
    case Kind::adamw:
      break;
  }
  return AdamWOptions{.lr = o.lr,
                      .beta1 = o.beta1,
                      .beta2 = o.beta2,
                      .eps = o.eps,
                      .weight_decay = o.weight_decay,
                      .m_dtype = o.m_dtype,
                      .v_dtype = o.v_dtype,
                      .rounding = o.rounding,
                      .seed = o.seed,
                      .master_weights = o.master_weights};
}

/// Whether a state has one scale for each kScaleBlock elements.
inline bool has_scale_blocks(const AnyOptions& options) {
  const auto* const adam = std::get_if<AdamWOptions>(&options);
  return adam && (adam->m_dtype == DType::e4m3 || adam->v_dtype == DType::e4m3);
}

inline std::unique_ptr<Optimizer> make(NamedTensors parameters, const AdamWOptions& options) {
  return std::make_unique<AdamW>(std::move(parameters), options);
}
inline std::unique_ptr<Optimizer> make(NamedTensors parameters, const SgdOptions& options) {
  return std::make_unique<Sgd>(std::move(parameters), options);
}
/// Throws Error where the optimizer's constructor does.
inline std::unique_ptr<Optimizer> make(NamedTensors parameters, const AnyOptions& options) {
  return std::visit([&](const auto& o) { return make(std::move(parameters), o); }, options);
}

}  // namespace weft::optim
