// Work of a rank that takes longer than a collective may.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "weft/core/error.h"
#include "weft/distributed/agree.h"
#include "weft/distributed/long_work.h"
#include "weft/tests/log_lines.h"
#include "weft/tests/ranks.h"
#include "weft/tests/support.h"

namespace weft::distributed::long_work_test {
namespace {

using test::error_of;
using test::LogLines;

constexpr double kTimeout = 1.5, kSlow = 4;

void sleep() { std::this_thread::sleep_for(std::chrono::duration<double>(kSlow)); }

}  // namespace

TEST_CASE("long work: the others wait for a slow rank as long as it takes") {
  const LogLines logged;
  for (const int slow : {0, 2}) {
    std::vector<int> done(3);
    const auto begin = std::chrono::steady_clock::now();
    run_ranks(3,
              [&](World& w) {
                const auto r = static_cast<std::size_t>(w.rank());
                take_time(w, "op", "count", [&] {
                  if (w.rank() == slow) sleep();
                  done[r] = 1;
                });
                CHECK(done == std::vector<int>(3, 1));
                CHECK(from_rank_0(w, w.rank() + 7) == 7);
              },
              {.timeout_s = kTimeout});
    const std::vector<std::string> lines = logged.taken();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    REQUIRE(lines.size() >= 2);  // each time that a collective would have ended the job, not more
    CHECK(static_cast<double>(lines.size()) * kTimeout < took.count());
    CHECK(lines[0].find("op: ranks have waited 2 s for rank") == 0);
    CHECK(lines[1].find(message(" s for rank {} to count", slow)) != std::string::npos);
  }
}

TEST_CASE("long work: an error reaches its own rank, when all have ended") {
  int done = 0;
  run_ranks(2, [&](World& w) {
    const std::string text = error_of([&] {
      take_time(w, "op", "count", [&] {
        check(w.rank() != 0, "no room");
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        done = 1;
      });
    });
    CHECK(text == (w.rank() == 0 ? "no room" : "no error"));
    CHECK(done == 1);
    w.all().barrier().wait();
  });
}

TEST_CASE("long work: a rank that is lost meanwhile ends the job") {
  struct Lost {};
  bool late = false;
  const std::string text = error_of([&] {
    run_ranks(2,
              [&](World& w) {
                if (w.rank() == 1) throw Lost{};
                take_time(w, "op", "count", sleep);
                late = true;
              },
              {.timeout_s = kTimeout});
  });
  CHECK(text.find("rank 1") != std::string::npos);
  CHECK(!late);
}

TEST_CASE("long work: one rank has no thread for it") {
  run_ranks(1, [](World& w) {
    const auto own = std::this_thread::get_id();
    take_time(w, "op", "count", [&] { CHECK(std::this_thread::get_id() == own); });
  });
}

}  // namespace weft::distributed::long_work_test
