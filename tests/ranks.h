#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weft/core/error.h"
#include "weft/distributed/flight_recorder.h"
#include "weft/distributed/launcher.h"
#include "weft/distributed/message_world.h"
#include "weft/tests/at_end.h"
#include "weft/tests/sanitized.h"

namespace weft::test {

/// The world that a launcher has started this program in, or null without a launcher.
inline distributed::World* launched_world() {
  static const std::unique_ptr<distributed::World> world =
      distributed::is_launched() ? distributed::world_of_launch({.timeout_s = 60}) : nullptr;
  return world.get();
}

/// The test cases of a launched program that called distributed_test(), and whether each ran a
/// body.
inline std::map<std::string, bool>& launched_cases() {
  static std::map<std::string, bool> cases;
  return cases;
}

/// Prints which test cases a launched program skipped. Returns 1 if it skipped all of them, else 0.
inline int end_of_launched() {
  if (!distributed::is_launched()) return 0;
  bool any = false;
  for (const auto& [name, ran] : launched_cases()) {
    any |= ran;
    if (!ran && distributed::launched_rank() == 0)
      std::printf("skipped, for other numbers of ranks: %s\n", name.c_str());
  }
  if (!any) std::fprintf(stderr, "no test is for this number of ranks\n");
  return any ? 0 : 1;
}
inline const bool kEndOfLaunched = (at_end = end_of_launched) != nullptr;

/// Runs f on all ranks of thread worlds of these sizes, one after another. Under a launcher it runs
/// once over the launched ranks if their number is in the list; a program that runs none of its
/// bodies fails.
///
///   distributed_test({1, 2, 4}, [](World& w) { CHECK(w.all().size() == w.size()); });
///
/// CHECK may be used on all ranks. REQUIRE throws out of f and fails the whole world.
inline void distributed_test(std::initializer_list<int> sizes,
                             const std::function<void(distributed::World&)>& f,
                             const distributed::WorldOptions& options = {}) {
  if (distributed::World* world = launched_world()) {
    const bool own = std::count(sizes.begin(), sizes.end(), world->size()) > 0;
    launched_cases()[doctest::getContextOptions()->currentTest->m_name] |= own;
    if (own) f(*world);
    return;
  }
  // Under a sanitizer the largest number shows what the others would.
  const int* const first = sanitized ? sizes.end() - 1 : sizes.begin();
  for (const int size : std::span(first, sizes.end())) distributed::run_ranks(size, f, options);
}

inline void distributed_test(int size, const std::function<void(distributed::World&)>& f,
                             const distributed::WorldOptions& options = {}) {
  distributed_test({size}, f, options);
}

/// Checks that all ranks have made the same collectives so far, in the same order in each lane.
/// Every rank must call it. It needs groups with the same name on each rank and sees only what the
/// recorder still holds.
inline void check_same_traces(distributed::World& world) {
  std::string text;
  for (int lane = 0; lane < distributed::kLanes; ++lane) {
    text += message("{}:\n", distributed::name(static_cast<distributed::Lane>(lane)));
    for (const std::string& line :
         distributed::collective_trace(world.recorder(), static_cast<distributed::Lane>(lane)))
      text += line + "\n";
  }
  // Broadcasts the first rank's text.
  const Tensor length = Tensor::full({1}, static_cast<double>(text.size()), DType::i64);
  world.all().broadcast(length, 0).wait();
  std::string first = text;
  first.resize(static_cast<std::size_t>(length.item_int()));
  const auto bytes = static_cast<std::int64_t>(first.size());
  world.all().broadcast(Tensor::wrap(first.data(), {bytes}, DType::u8), 0).wait();
  CHECK_MESSAGE(first == text,
                message("rank {} made other collectives than rank 0:\n{}instead of\n{}",
                        world.rank(), text, first));
}

}  // namespace weft::test
