#include <doctest/doctest.h>

#include "weft/nn/gpt.h"
#include "weft/nn/shard_spec.h"
#include "weft/tests/support.h"

namespace weft::nn::part_test {
namespace {

// The shard of a whole tensor, by slicing.
Tensor sliced(const Tensor& whole, const ShardSpec& part) {
  Tensor x = whole.detach();
  for (const ShardSpec::Cut& cut : part.cuts) {
    TensorList pieces;
    for (const auto& [begin, end] : cut.ranges)
      pieces.push_back(narrow(x, cut.axis, begin, end - begin));
    x = cat(pieces, cut.axis);
  }
  return x;
}

struct OneMatrix : Module {
  Tensor weight;
  Init init;
  OneMatrix(const Shape& shape, const Init& rule) : init(rule) {
    const NoGradGuard off;
    weight = Tensor::zeros(shape);
    weight.set_requires_grad();
  }
  void visit(Visitor& v) override { v("weight", weight, init); }
};

}  // namespace

TEST_CASE("init: shards have the bits of the whole") {
  const ShardSpec parts[] = {
      {{7, 5}, {{0, {{0, 4}}}}},
      {{7, 5}, {{0, {{4, 7}}}}},
      {{7, 5}, {{1, {{0, 3}}}}},
      {{7, 5}, {{1, {{3, 5}}}}},
      {{7, 5}, {{0, {{6, 7}}}}},
      {{7, 5}, {{0, {{7, 7}}}}},
      {{12, 5}, {{0, {{1, 3}, {6, 7}, {9, 12}}}}},
      {{7, 6}, {{1, {{0, 1}, {3, 5}}}, {0, {{2, 3}, {4, 7}}}}},
      {{3, 4, 5}, {{1, {{1, 3}}}, {0, {{1, 2}}}}},
      {{3, 4, 5}, {}},
  };
  for (const Init& rule :
       {Init::normal(0.3), Init::uniform(2), Init::truncated_normal(1), Init::constant(4)})
    for (const ShardSpec& part : parts) {
      OneMatrix whole(part.whole, rule), own(shape_of(part), rule);
      init(whole, 11);
      init(own, 11, {{"weight", part}});
      CHECK(test::different_bits(own.weight, sliced(whole.weight, part)) == "");
      OneMatrix other(part.whole, rule);
      other.weight = Tensor::zeros({7, 99}).set_requires_grad();
      CHECK(test::error_of([&] {
              init(other, 11, {{"weight", part}});
            }) == message("init: weight must have the shape {} of its part of {}, got [7, 99]",
                          shape_of(part), part.whole));
    }
}

TEST_CASE("shard_spec: visiting a range of a shard touches only its elements") {
  using Stretch = std::vector<std::int64_t>;
  const auto runs = [](const ShardSpec& part, std::int64_t begin, std::int64_t end) {
    std::vector<Stretch> out;
    for_each_run(part, begin, end, [&](std::int64_t whole, std::int64_t own, std::int64_t count) {
      out.push_back({whole, own, count});
    });
    return out;
  };
  constexpr std::int64_t kMany = std::int64_t{1} << 50;
  CHECK(runs({{kMany, 2}, {{1, {{0, 1}}}}}, 5, 7) == std::vector<Stretch>{{10, 5, 1}, {12, 6, 1}});
  CHECK(runs({{kMany, 0}, {{1, {}}}}, 0, 0).empty());
  CHECK(runs({{kMany, 4}, {{1, {{1, 1}, {2, 2}}}}}, 0, 0).empty());
  const ShardSpec part{{3, 4, 5}, {{1, {{1, 2}, {2, 2}, {3, 4}}}, {0, {{0, 1}, {2, 3}}}}};
  const std::vector<Stretch> all = runs(part, 0, 20);
  CHECK(all == std::vector<Stretch>{{5, 0, 5}, {15, 5, 5}, {45, 10, 5}, {55, 15, 5}});
  // Any subrange gives the same elements.
  for (std::int64_t begin = 0; begin <= 20; ++begin)
    for (std::int64_t end = begin; end <= 20; ++end) {
      std::vector<std::int64_t> want, got;
      for (const Stretch& r : all)
        for (std::int64_t i = 0; i < r[2]; ++i)
          if (r[1] + i >= begin && r[1] + i < end) want.push_back(r[0] + i);
      for (const Stretch& r : runs(part, begin, end))
        for (std::int64_t i = 0; i < r[2]; ++i) got.push_back(r[0] + i);
      CHECK(got == want);
    }
  CHECK(test::error_of([&] { runs(part, 3, 21); }) ==
        "shard_spec: [3, 21) must lie among the 20 elements of the shard");
}

TEST_CASE("shard_spec: invalid cuts are refused") {
  CHECK(test::error_of([] {
          shape_of({{4, 2}, {{0, {{0, 1}}}, {0, {{1, 2}}}}});
        }) == "shard_spec: an axis must be cut once, got two cuts of axis 0");
  CHECK(test::error_of([] {
          shape_of({{4, 2}, {{2, {{0, 1}}}}});
        }) == "shard_spec: a cut must be along an axis of [4, 2], got axis 2");
  CHECK(test::error_of([] {
          shape_of({{4, 2}, {{0, {{2, 3}, {1, 4}}}}});
        }) ==
        "shard_spec: the ranges of axis 0 of [4, 2] must ascend inside it, got [1, 4) after 3");
  CHECK(test::error_of([] {
          shape_of({{4, 2}, {{0, {{2, 5}}}}});
        }) ==
        "shard_spec: the ranges of axis 0 of [4, 2] must ascend inside it, got [2, 5) after 0");
}

}  // namespace weft::nn::part_test
