#include <doctest/doctest.h>

#include "weft/nn/gpt.h"
#include "weft/nn/part.h"
#include "weft/tests/support.h"

namespace weft::nn {
namespace {

// What the part of a whole is, by slicing.
Tensor sliced(const Tensor& whole, const Part& part) {
  Tensor x = whole.detach();
  for (const Part::Cut& cut : part.cuts) {
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

TEST_CASE("init: parts have the bits of the whole") {
  const Part parts[] = {
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
    for (const Part& part : parts) {
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

TEST_CASE("part: what it refuses") {
  CHECK(test::error_of([] {
          shape_of({{4, 2}, {{2, {{0, 1}}}}});
        }) == "part: a cut must be along an axis of [4, 2], got axis 2");
  CHECK(test::error_of([] {
          shape_of({{4, 2}, {{0, {{2, 3}, {1, 4}}}}});
        }) == "part: the ranges of axis 0 of [4, 2] must ascend inside it, got [1, 4) behind 3");
  CHECK(test::error_of([] {
          shape_of({{4, 2}, {{0, {{2, 5}}}}});
        }) == "part: the ranges of axis 0 of [4, 2] must ascend inside it, got [2, 5) behind 0");
}

}  // namespace weft::nn
