#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "weft/core/default_threads.h"
#include "weft/core/parallel.h"
#include "weft/tests/support.h"

namespace weft {
namespace {

constexpr std::int64_t kHeavy = 1 << 20;  // work that is worth threads even for two items

struct Threads {
  explicit Threads(int n) : before(num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before); }
  int before;
};

}  // namespace

TEST_CASE("every index once, in contiguous ranges, for any length and number of threads") {
  for (const int threads : {1, 2, 3, 7})
    for (const std::int64_t n : {0, 1, 2, 3, 6, 7, 8, 100, 1001})
      for (const std::int64_t work : {std::int64_t{1}, kHeavy}) {
        CAPTURE(threads);
        CAPTURE(n);
        const Threads scope(threads);
        const auto seen = std::make_unique<std::atomic<int>[]>(static_cast<std::size_t>(n) + 1);
        std::atomic<int> calls{0}, wrong{0};
        parallel_for(n, work, [&](std::int64_t begin, std::int64_t end) {
          ++calls;
          wrong += !(0 <= begin && begin < end && end <= n);
          for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
        });
        CHECK(wrong == 0);
        for (std::int64_t i = 0; i < n; ++i) CHECK(seen[static_cast<std::size_t>(i)] == 1);
        CHECK(seen[static_cast<std::size_t>(n)] == 0);
        if (n == 0)
          CHECK(calls == 0);
        else if (work == 1)
          CHECK(calls == 1);
        else  // one range a thread at least, a few more when there is enough for them
          CHECK(calls >= std::min<std::int64_t>(n, threads));
      }
}

TEST_CASE("heavy work really runs on several threads") {
  const Threads scope(3);
  std::atomic<int> there{0};
  std::mutex mutex;
  std::set<std::thread::id> who;
  parallel_for(3, kHeavy, [&](std::int64_t, std::int64_t) {
    // Each waits for the others: on fewer threads this would end by the clock alone.
    ++there;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (there < 3 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    const std::lock_guard lock(mutex);
    who.insert(std::this_thread::get_id());
  });
  CHECK(who.size() == 3);
}

TEST_CASE("a thread that is held up delays only its own range") {
  const Threads scope(2);
  std::atomic<std::int64_t> done{0};
  parallel_for(64, kHeavy, [&](std::int64_t begin, std::int64_t end) {
    // Whoever has the first index waits until the other thread has done all the rest.
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (begin == 0 && done < 64 - end && std::chrono::steady_clock::now() < give_up)
      std::this_thread::yield();
    if (begin == 0) CHECK(done == 64 - end);
    done += end - begin;
  });
  CHECK(done == 64);
}

TEST_CASE("a loop inside a loop runs on its own thread") {
  const Threads scope(3);
  std::atomic<int> inner_calls{0}, elsewhere{0};
  parallel_for(3, kHeavy, [&](std::int64_t, std::int64_t) {
    const auto me = std::this_thread::get_id();
    parallel_for(100, kHeavy, [&](std::int64_t begin, std::int64_t end) {
      ++inner_calls;
      elsewhere += std::this_thread::get_id() != me || begin != 0 || end != 100;
    });
  });
  CHECK(inner_calls == 3);
  CHECK(elsewhere == 0);
  // And the next outer loop is parallel again.
  std::atomic<int> calls{0};
  parallel_for(3, kHeavy, [&](std::int64_t, std::int64_t) { ++calls; });
  CHECK(calls == 3);
}

TEST_CASE("loops from several threads at once") {
  const Threads scope(2);
  std::atomic<std::int64_t> total{0};
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i)
        parallel_for(10, kHeavy,
                     [&](std::int64_t begin, std::int64_t end) { total += end - begin; });
    });
  for (std::thread& t : threads) t.join();
  CHECK(total == 600);
}

TEST_CASE("threads with a share each run their loops at the same time, each on all of its share") {
  const Threads scope(7);
  std::atomic<int> there{0}, counts_right{0};
  const auto rank = [&] {
    const ThreadShare share(2);
    counts_right += num_threads() == 2;
    for (int round = 1; round <= 5; ++round)
      parallel_for(2, kHeavy, [&](std::int64_t, std::int64_t) {
        // Three threads of two each: six wait for one another.
        ++there;
        const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (there < 6 * round && std::chrono::steady_clock::now() < give_up)
          std::this_thread::yield();
        CHECK(there >= 6 * round);
      });
    {
      const ThreadShare inner(1);
      counts_right += num_threads() == 1;
    }
    counts_right += num_threads() == 2;
  };
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k) threads.emplace_back(rank);
  for (std::thread& t : threads) t.join();
  CHECK(counts_right == 9);
  CHECK(num_threads() == 7);
  CHECK(test::error_of([] { const ThreadShare none(0); }) ==
        "ThreadShare: must be at least 1, got 0");
}

TEST_CASE("the number of threads") {
  CHECK(num_threads() >= 1);
  {
    const Threads scope(5);
    CHECK(num_threads() == 5);
    set_default_threads(3);
    CHECK(num_threads() == 5);
    int elsewhere = 0;
    std::thread([&] { elsewhere = num_threads(); }).join();
    CHECK(elsewhere == 5);
  }
  CHECK(test::error_of([] { set_num_threads(0); }) == "set_num_threads: must be at least 1, got 0");
  CHECK(test::error_of([] { set_num_threads(-3); }) ==
        "set_num_threads: must be at least 1, got -3");
  CHECK(test::error_of([] { set_default_threads(0); }) ==
        "set_default_threads: must be at least 1, got 0");
}

TEST_CASE("deterministic mode is a switch") {
  CHECK_FALSE(deterministic());
  set_deterministic(true);
  CHECK(deterministic());
  set_deterministic(false);
  CHECK_FALSE(deterministic());
}

}  // namespace weft
