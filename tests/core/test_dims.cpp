// Axes as values: what makes a list of them, and what does not compile.
#include <doctest/doctest.h>

#include <array>
#include <span>
#include <vector>

#include "weft/core/dims.h"
#include "weft/tests/support.h"

namespace weft::dims_test {
namespace {

std::vector<int> listed(const Dims& dims) { return {dims.begin(), dims.end()}; }

}  // namespace

TEST_CASE("dims: a list in braces, one number, or values computed at run time") {
  const std::vector<int> axes{2, -1};
  CHECK(listed({2, -1}) == axes);
  CHECK(listed(axes) == axes);
  CHECK(listed(std::array{2, -1}) == axes);
  CHECK(listed(std::span(axes)) == axes);
  CHECK(listed(std::span<const int>(axes)) == axes);
  CHECK(listed(3) == std::vector<int>{3});
  CHECK(listed({3}) == std::vector<int>{3});
  CHECK(listed({}).empty());
  CHECK(Dims().empty());
  const Dims copy = Dims(axes);
  CHECK(copy.size() == 2);
  CHECK(listed(copy) == axes);
}

TEST_CASE("dims: a bool and a fraction are no axes") {
  static_assert(std::is_convertible_v<int, Dims>);
  static_assert(!std::is_constructible_v<Dims, bool>);
  static_assert(!std::is_constructible_v<Dims, double>);
  static_assert(!std::is_constructible_v<Dims, std::vector<double>>);
}

TEST_CASE("dims: more axes than a tensor has are refused") {
  CHECK(Dims(std::vector<int>(8, 0)).size() == 8);
  CHECK(test::error_of([] { Dims(std::vector<int>(9, 0)); }) == "shape: at most 8 axes, got 9");
}

}  // namespace weft::dims_test
