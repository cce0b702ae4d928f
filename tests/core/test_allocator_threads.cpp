// Blocks that one thread allocates and another frees, and ranks that are threads.
#include <doctest/doctest.h>

#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/memory_domain.h"
#include "weft/tests/allocator_support.h"
#include "weft/tests/count_new.h"
#include "weft/tests/support.h"

namespace weft::allocator_test {

TEST_CASE("allocator: any thread may free a block and an ending thread shares its cache") {
  release_cached_memory();
  const MemoryStats start = memory_stats();
  Tensor a = block(40000);
  void* const p = a.raw();
  std::thread([moved = std::move(a)]() mutable { moved = {}; }).join();
  CHECK(memory_stats().live_bytes == start.live_bytes);
  CHECK(memory_stats().cached_bytes == size_class_bytes(40000));
  Tensor again = block(40000);
  CHECK(again.raw() == p);
  CHECK(memory_stats().hits == start.hits + 1);
  void* q = nullptr;
  std::thread([&] { q = block(50000).raw(); }).join();
  CHECK(block(50000).raw() == q);
}

TEST_CASE(
    "allocator: a block that is freed after its thread's cache has ended goes to the shared one") {
  release_cached_memory();
  const MemoryStats start = memory_stats();
  void* p = nullptr;
  std::thread([&] {
    static thread_local Tensor late;  // made before the cache, so it ends after it
    late = block(30000);
    p = late.raw();
    block(20000);  // its memory opens the cache
  }).join();
  CHECK(memory_stats().live_bytes == start.live_bytes);
  CHECK(memory_stats().cached_bytes ==
        start.cached_bytes + size_class_bytes(30000) + size_class_bytes(20000));
  CHECK(block(30000).raw() == p);
}

TEST_CASE("allocator: counts stay right when threads free each other's blocks") {
  release_cached_memory();
  const std::int64_t live = memory_stats().live_bytes;
  std::vector<Tensor> mailbox(64);
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (unsigned k = 0; k < 4; ++k)
    threads.emplace_back([&, k] {
      for (unsigned i = 0; i < 3000; ++i) {
        Tensor t = block(1 + (i * 7919 + k * 104729) % 200000);
        *static_cast<unsigned char*>(t.raw()) = 1;
        const std::lock_guard lock(mutex);
        std::swap(mailbox[(i * 31 + k) % mailbox.size()], t);
      }
    });
  for (std::thread& t : threads) t.join();
  mailbox.clear();
  CHECK(memory_stats().live_bytes == live);
  release_cached_memory();
  CHECK(memory_stats().cached_bytes == 0);
}

TEST_CASE("allocator: a thread that drops another's tensors does not hoard headers") {
  float mine[4];
  const auto round = [&] {
    std::vector<Tensor> made;
    std::thread([&] {
      for (int i = 0; i < 50000; ++i) made.push_back(Tensor::wrap(mine, {4}, DType::f32));
    }).join();
  };
  round();
  const long before = test::news - test::deletes;
  for (int i = 0; i < 4; ++i) round();  // 400000 headers
  CHECK(test::news - test::deletes - before < 50000);
}

TEST_CASE("allocator: ranks that are threads are counted separately") {
  const MemoryStats before = memory_stats();
  std::int64_t live[2] = {}, peak[2] = {}, parameters[2] = {}, left[2] = {};
  const auto rank = [&](int number) {
    const MemoryDomain domain(number);
    reset_peak();
    const MemoryStats begin = memory_stats();
    {
      const CategoryScope category(Category::parameter);
      const Tensor weight = Tensor::empty({1024 * (number + 1)});
      { const Tensor gone = Tensor::empty({4096}); }
      live[number] = memory_stats().live_bytes - begin.live_bytes;
      peak[number] = memory_stats().peak_bytes - begin.live_bytes;
      parameters[number] = memory_stats().live_by_category[static_cast<int>(Category::parameter)];
    }
    left[number] = memory_stats().live_bytes - begin.live_bytes;
  };
  std::thread first(rank, 0), second(rank, 1);
  first.join();
  second.join();
  for (const int number : {0, 1}) {
    CHECK(live[number] == 4096 * (number + 1));
    CHECK(peak[number] == 4096 * (number + 1) + 4 * 4096);
    CHECK(parameters[number] == live[number]);
    CHECK(left[number] == 0);
  }
  CHECK(memory_stats().live_bytes == before.live_bytes);
  // Outside of the domains everything counts, wherever it was allocated.
  Tensor x;
  {
    const MemoryDomain domain(64);  // the first domain again
    const std::int64_t empty = memory_stats().live_bytes;
    x = Tensor::empty({1024});
    CHECK(memory_stats().live_bytes == empty + 4096);
    const MemoryDomain inner(1);
    CHECK(memory_stats().live_bytes == 0);
  }
  CHECK(memory_stats().live_bytes == before.live_bytes + 4096);
  x = {};
  CHECK(memory_stats().live_bytes == before.live_bytes);
  CHECK(test::error_of([] { const MemoryDomain none(-1); }) ==
        "MemoryDomain: number must be at least 0, got -1");
}

}  // namespace weft::allocator_test
