#include <doctest/doctest.h>

#include <string>

#include "weft/core/parallel.h"
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

TEST_CASE("pattern: a wrong expression is refused each time, by the op that asked") {
  for (const char* op : {"first", "second"})
    CHECK(test::error_of([&] { Pattern(op, "(x"); }) ==
          message("{}: pattern \"(x\" is not a regular expression", op));
}

TEST_CASE("pattern: threads make more patterns than are kept, the same ones too") {
  constexpr int kPatterns = 3000;
  parallel_for(kPatterns, 1 << 20, [](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Pattern same("test", "a+"), own("test", message("n{}", i));
      if (!same.matches("aaa") || same.matches("n") || !own.matches(message("n{}", i)) ||
          own.matches("n"))
        throw Error("a pattern matches wrongly");
    }
  });
}
