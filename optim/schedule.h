#pragma once
#include <cstdint>
#include <string>

#include "weft/core/fields.h"

namespace weft::optim {

/// The learning rate as a pure function of the update number, so that resuming needs no state.
///
/// Updates count from 1 to `steps`. The first `warmup` updates rise linearly (update w uses lr * w
/// / warmup); then
///   constant  lr
///   linear    a line from lr to min_lr at the last update
///   cosine    half a cosine from lr to min_lr at the last update
///   wsd       lr, then over the last `decay_fraction` of all updates 1 - sqrt(progress) down to
///             min_lr. Source: Haegele et al. 2024, arXiv:2405.18392
/// A warm-up longer than the run ends with it. After the last update the last value stays.
struct Schedule {
  enum class Kind : std::uint8_t { constant, linear, cosine, wsd };
  Kind kind = Kind::constant;
  double lr = 1e-3;
  double min_lr = 0;
  std::int64_t warmup = 0;
  std::int64_t steps = 1;
  double decay_fraction = 0.2;

  /// The learning rate of update `step`.
  double at(std::int64_t step) const;
  /// Throws Error such as "schedule: min_lr must be in [0, lr 0.001], got 0.01".
  void validate() const;
  /// Parses "constant", "linear", "cosine" or "wsd".
  /// Throws Error on any other text.
  static Kind parse(const std::string& name);
};

inline constexpr Word<Schedule::Kind> kScheduleWords[] = {{"constant", Schedule::Kind::constant},
                                                          {"linear", Schedule::Kind::linear},
                                                          {"cosine", Schedule::Kind::cosine},
                                                          {"wsd", Schedule::Kind::wsd}};

}  // namespace weft::optim
