#pragma once
#include <doctest/doctest.h>

#include "weft/distributed/world.h"
#include "weft/tests/count_new.h"

namespace weft::test {

/// Checks that `step` allocates nothing after warm-up. Every rank of a world of threads must call
/// it.
template <class Step>
void check_warm(distributed::World& world, const Step& step) {
  for (int i = 0; i < 4; ++i) step();
  world.all().barrier().wait();
  const long before = news;
  world.all().barrier().wait();
  for (int i = 0; i < 3; ++i) step();
  world.all().barrier().wait();
  CHECK(news - before == 0);
  world.all().barrier().wait();
}

}  // namespace weft::test
