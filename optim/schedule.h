#pragma once
#include <cstdint>
#include <string>

#include "weft/core/fields.h"

namespace weft::optim {

/// The learning rate as a pure function of the update's number, so resuming needs no state.
///
/// Updates count from 1 to `steps`. The first `warmup` of them rise linearly (update w uses
/// lr * w / warmup); then
///   constant  lr
///   linear    straight from lr to min_lr at the last update
///   cosine    half a cosine from lr to min_lr at the last update
///   wsd       lr, and over the last `decay_fraction` of all updates 1 - sqrt(progress) down to
///             min_lr. Source: Haegele et al. 2024, arXiv:2405.18392
/// A warm-up longer than the run ends with it. Past the last update the last value stays.
struct Schedule {
  enum class Kind : std::uint8_t { constant, linear, cosine, wsd };
  Kind kind = Kind::constant;
  double lr = 1e-3;
  double min_lr = 0;
  std::int64_t warmup = 0;
  std::int64_t steps = 1;
  double decay_fraction = 0.2;

  /// The rate of update `step`.
  double at(std::int64_t step) const;
  /// Throws Error: "schedule: min_lr must be in [0, lr 0.001], got 0.01".
  void validate() const;
  /// Reads "constant", "linear", "cosine", "wsd".
  /// Throws Error on any other text.
  static Kind parse(const std::string& name);
};

inline constexpr Word<Schedule::Kind> kScheduleWords[] = {{"constant", Schedule::Kind::constant},
                                                          {"linear", Schedule::Kind::linear},
                                                          {"cosine", Schedule::Kind::cosine},
                                                          {"wsd", Schedule::Kind::wsd}};

}  // namespace weft::optim
