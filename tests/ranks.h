#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <initializer_list>

#include "weft/distributed/world.h"

namespace weft::test {

/// The world that a launcher has started this program in, or null when it runs alone.
inline distributed::World* launched_world() { return nullptr; }

/// Runs f on all ranks of a world of each of these sizes, one after another, over threads. Under a
/// launcher: once, over its ranks, when their number is among the sizes.
///
///   distributed_test({1, 2, 4}, [](World& w) { CHECK(w.all().size() == w.size()); });
///
/// CHECK may be used on all ranks. REQUIRE, which leaves f, fails the whole world.
inline void distributed_test(std::initializer_list<int> sizes,
                             const std::function<void(distributed::World&)>& f,
                             const distributed::WorldOptions& options = {}) {
  if (distributed::World* world = launched_world()) {
    if (std::count(sizes.begin(), sizes.end(), world->size())) f(*world);
    return;
  }
  for (const int size : sizes) distributed::run_ranks(size, f, options);
}

inline void distributed_test(int size, const std::function<void(distributed::World&)>& f,
                             const distributed::WorldOptions& options = {}) {
  distributed_test({size}, f, options);
}

}  // namespace weft::test
