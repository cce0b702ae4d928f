#include <doctest/doctest.h>

#include "weft/core/shape.h"
#include "weft/tests/support.h"

namespace weft::shape_test {

using test::error_of;

TEST_CASE("shape: building, comparing and editing") {
  Shape s{2, 3};
  CHECK(s.size() == 2);
  CHECK(s[1] == 3);
  CHECK(s.back() == 3);
  CHECK(s.numel() == 6);
  CHECK(s == Shape{2, 3});
  CHECK_FALSE(s == Shape{3, 2});
  CHECK_FALSE(s == Shape{2, 3, 1});
  s.insert(0, 7);
  CHECK(s == Shape{7, 2, 3});
  s.insert(3, 9);
  CHECK(s == Shape{7, 2, 3, 9});
  s.erase(1);
  CHECK(s == Shape{7, 3, 9});
  s.pop_back();
  s.push_back(5);
  CHECK(s == Shape{7, 3, 5});
  CHECK(Shape::filled(3, 4) == Shape{4, 4, 4});
}

TEST_CASE("shape: scalars and empty axes") {
  CHECK(Shape{}.empty());
  CHECK(Shape{}.numel() == 1);
  CHECK(Shape{4, 0, 3}.numel() == 0);
  CHECK(to_string(Shape{}) == "[]");
  CHECK(to_string(Shape{2, 4}) == "[2, 4]");
}

TEST_CASE("shape: eight axes fit, nine do not") {
  CHECK(Shape{1, 2, 3, 4, 5, 6, 7, 8}.size() == kMaxDims);
  CHECK(error_of([] { Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}; }) == "shape: at most 8 axes, got 9");
}

TEST_CASE("shape: strides of a row-contiguous tensor") {
  CHECK(contiguous_strides({2, 3, 4}) == Shape{12, 4, 1});
  CHECK(contiguous_strides({}) == Shape{});
}

TEST_CASE("shape: broadcasting aligns at the last axis") {
  CHECK(broadcast_shapes("add", {2, 3}, {3}) == Shape{2, 3});
  CHECK(broadcast_shapes("add", {2, 1}, {5, 1, 3}) == Shape{5, 2, 3});
  CHECK(broadcast_shapes("add", {}, {4}) == Shape{4});
  CHECK(broadcast_shapes("add", {0, 1}, {1, 3}) == Shape{0, 3});
  CHECK(broadcast_shapes("add", {1}, {0}) == Shape{0});
  CHECK(error_of([] {
          broadcast_shapes("add", {2, 3}, {4});
        }) == "add: shapes must broadcast, got [2, 3] and [4]");
  CHECK(error_of([] { broadcast_shapes("add", {0}, {2}); }) ==
        "add: shapes must broadcast, got [0] and [2]");
}

TEST_CASE("shape: negative axes count from the end") {
  CHECK(normalize_dim("sum", -1, 3) == 2);
  CHECK(normalize_dim("sum", 0, 3) == 0);
  CHECK(normalize_dim("sum", -1, 0) == 0);
  CHECK(error_of([] { normalize_dim("sum", 3, 3); }) == "sum: dim must be in [-3, 3), got 3");
  CHECK(error_of([] { normalize_dim("sum", -4, 3); }) == "sum: dim must be in [-3, 3), got -4");
  CHECK(error_of([] { normalize_dim("sum", 1, 0); }) == "sum: dim must be in [-1, 1), got 1");
}

}  // namespace weft::shape_test
