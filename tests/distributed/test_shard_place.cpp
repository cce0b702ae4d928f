#include <doctest/doctest.h>

#include "weft/distributed/shard_place.h"
#include "weft/tests/support.h"

namespace weft::distributed::shard_place_test {

TEST_CASE("shard_place: every element is where for_each_run says") {
  const nn::ShardSpec specs[] = {
      {{12, 5}, {{0, {{3, 6}}}}},
      {{12, 5}, {{0, {{0, 2}, {4, 4}, {6, 7}, {10, 12}}}}},
      {{4, 12}, {{1, {{3, 6}}}}},
      {{4, 12}, {{1, {{0, 3}, {6, 9}}}}},
      {{6, 8, 5}, {{0, {{2, 4}}}, {1, {{1, 3}, {5, 7}}}}},
      {{6, 8, 5}, {{2, {{1, 4}}}, {0, {{4, 6}}}}},
      {{7}, {{0, {{2, 6}}}}},
  };
  for (const nn::ShardSpec& spec : specs) {
    const ShardPlace place = place_of(spec, "w");
    std::int64_t seen = 0;
    nn::for_each_run(spec, [&](std::int64_t whole, std::int64_t own, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i, ++seen) {
        if (whole_index(&place, own + i) != whole + i)
          FAIL("element ", own + i, " is at ", whole_index(&place, own + i), ", not ", whole + i);
        CHECK(run_length(&place, own + i) >= 1);
      }
      CHECK(run_length(&place, own) <= count);
    });
    CHECK(seen == shape_of(spec).numel());
  }
  CHECK(whole_index(nullptr, 7) == 7);
}

TEST_CASE("shard_place: errors name the parameter and the rule") {
  const auto said = [](const nn::ShardSpec& spec) {
    return test::error_of([&] { place_of(spec, "w"); });
  };
  CHECK(said({{4}, {}}) == "shard_place: w must be cut, got the whole parameter");
  CHECK(said({{4, 4, 4}, {{1, {{0, 2}}}, {2, {{0, 2}}}}}) ==
        "shard_place: the first of two cuts of w must be one range of axis 0, got 1 of axis 1");
  nn::ShardSpec many{{18}, {{0, {}}}};
  for (int i = 0; i < 9; ++i) many.cuts[0].ranges.emplace_back(2 * i, 2 * i + 1);
  CHECK(said(many) == "shard_place: w must be cut into at most 8 ranges, got 9");
}

}  // namespace weft::distributed::shard_place_test
