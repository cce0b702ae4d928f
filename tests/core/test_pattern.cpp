#include <doctest/doctest.h>

#include "weft/core/pattern.h"
#include "weft/tests/support.h"

using namespace weft;

TEST_CASE("pattern: describes a whole name or a part of it") {
  const Pattern up("test", R"(blocks\.\d+\.up)");
  CHECK(up.matches("blocks.10.up"));
  CHECK_FALSE(up.matches("blocks.10.up.weight"));
  CHECK(up.is_found_in("model.blocks.10.up.weight"));
  CHECK_FALSE(up.is_found_in("model.blocks.x.up"));
}

TEST_CASE("pattern: a wrong expression is refused by the op that asked") {
  for (const char* op : {"first", "second"})
    CHECK(test::error_of([&] { Pattern(op, "(x"); }) ==
          message("{}: pattern \"(x\" is not a regular expression", op));
}
