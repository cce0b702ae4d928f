#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include "weft/optim/schedule.h"
#include "weft/tests/support.h"

namespace weft::schedule_test {
using optim::Schedule;
using Kind = optim::Schedule::Kind;

namespace {

Schedule make(Kind kind) {
  return {.kind = kind, .lr = 0.8, .min_lr = 0.1, .warmup = 10, .steps = 110};
}

struct Row {
  std::int64_t step;
  double lr;
};

void check_table(const Schedule& s, std::initializer_list<Row> rows) {
  for (const Row& r : rows) {
    CAPTURE(r.step);
    CHECK(s.at(r.step) == doctest::Approx(r.lr).epsilon(1e-14));
  }
}

}  // namespace

TEST_CASE("schedule: warm-up rises linearly and reaches lr at its last update") {
  for (const Kind kind : {Kind::constant, Kind::linear, Kind::cosine, Kind::wsd})
    check_table(make(kind), {{1, 0.08}, {5, 0.4}, {9, 0.72}, {10, 0.8}});
}

TEST_CASE("schedule: constant keeps lr") {
  check_table(make(Kind::constant), {{11, 0.8}, {60, 0.8}, {110, 0.8}, {1000, 0.8}});
}

TEST_CASE("schedule: linear falls straight to min_lr at the last update") {
  check_table(make(Kind::linear),
              {{11, 0.8 - 0.007}, {60, 0.45}, {85, 0.275}, {110, 0.1}, {500, 0.1}});
}

TEST_CASE("schedule: cosine falls along half a cosine") {
  check_table(make(Kind::cosine), {{35, 0.1 + 0.35 * (1 + std::numbers::sqrt2 / 2)},
                                   {60, 0.45},
                                   {85, 0.1 + 0.35 * (1 - std::numbers::sqrt2 / 2)},
                                   {110, 0.1},
                                   {500, 0.1}});
}

TEST_CASE("schedule: wsd holds lr and then falls as 1 - sqrt over the last 20 % of all updates") {
  // 20 % of 110 is 22: updates 89 .. 110 decay.
  check_table(
      make(Kind::wsd),
      {{50, 0.8}, {88, 0.8}, {99, 0.1 + 0.7 * (1 - std::sqrt(0.5))}, {110, 0.1}, {500, 0.1}});
  Schedule half = make(Kind::wsd);
  half.decay_fraction = 0.5;
  check_table(half, {{55, 0.8}, {55 + 55 / 5, 0.1 + 0.7 * (1 - std::sqrt(0.2))}, {110, 0.1}});
}

TEST_CASE("schedule: without warm-up the first update already decays") {
  Schedule s = make(Kind::linear);
  s.warmup = 0;
  s.steps = 10;
  check_table(s, {{1, 0.73}, {5, 0.45}, {10, 0.1}});
}

TEST_CASE("schedule: a warm-up longer than the run ends with it") {
  for (const Kind kind : {Kind::constant, Kind::linear, Kind::cosine, Kind::wsd}) {
    Schedule s = make(kind);
    s.warmup = 1000;
    s.steps = 20;
    check_table(s, {{1, 0.04}, {10, 0.4}, {19, 0.76}, {20, 0.8}, {21, 0.8}});
  }
}

TEST_CASE("schedule: a single update uses lr or the decayed min_lr") {
  Schedule s{.kind = Kind::constant, .lr = 0.5, .steps = 1};
  CHECK(s.at(1) == 0.5);
  s.kind = Kind::cosine;
  CHECK(s.at(1) == 0.0);
  s.warmup = 1;
  CHECK(s.at(1) == 0.5);
}

TEST_CASE("schedule: the decay of wsd begins where a rounded product says") {
  const Schedule s{.kind = Kind::wsd, .lr = 1, .steps = 100, .decay_fraction = 0.29};
  CHECK(s.at(71) == 1);  // 0.29 * 100 is 28.999999999999996
  CHECK(s.at(72) == doctest::Approx(1 - std::sqrt(1 / 29.0)).epsilon(1e-14));
}

TEST_CASE("schedule: kinds are parsed and printed by name") {
  CHECK(Schedule::parse("constant") == Kind::constant);
  CHECK(Schedule::parse("linear") == Kind::linear);
  CHECK(Schedule::parse("cosine") == Kind::cosine);
  CHECK(Schedule::parse("wsd") == Kind::wsd);
  CHECK(test::error_of([] { Schedule::parse("cos"); }) ==
        "schedule: must be one of constant, linear, cosine, wsd, got 'cos'");
}

TEST_CASE("schedule: errors name the rule") {
  const auto error = [](auto change) {
    Schedule s{.lr = 0.5, .steps = 10};
    change(s);
    return test::error_of([&] { s.validate(); });
  };
  CHECK(error([](Schedule&) {}) == "no error");
  CHECK(error([](Schedule& s) { s.lr = -1; }) ==
        "schedule: lr must be finite and at least 0, got -1");
  CHECK(error([](Schedule& s) { s.min_lr = 0.75; }) ==
        "schedule: min_lr must be in [0, lr 0.5], got 0.75");
  CHECK(error([](Schedule& s) { s.warmup = -3; }) == "schedule: warmup must be at least 0, got -3");
  CHECK(error([](Schedule& s) { s.steps = 0; }) == "schedule: steps must be at least 1, got 0");
  CHECK(error([](Schedule& s) { s.decay_fraction = 1.5; }) ==
        "schedule: decay_fraction must be in [0, 1], got 1.5");
}

}  // namespace weft::schedule_test
