// The allocator counts live, cached and peak bytes, by category and by device.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/tests/allocator_support.h"

namespace weft::allocator_test {

TEST_CASE("allocator: counters are exact") {
  const std::int64_t size = 3 * kMiB, held = size_class_bytes(size);
  release_cached_memory();
  reset_peak();
  const MemoryStats start = memory_stats();
  CHECK(start.cached_bytes == 0);
  CHECK(start.peak_bytes == start.live_bytes);
  {
    const Tensor a = block(size);
    const Tensor b = block(size);
    MemoryStats now = memory_stats();
    CHECK(now.misses == start.misses + 2);
    CHECK(now.hits == start.hits);
    CHECK(now.system_allocs == start.system_allocs + 2);
    CHECK(now.live_bytes == start.live_bytes + 2 * held);
    CHECK(now.cached_bytes == 0);
  }
  MemoryStats now = memory_stats();
  CHECK(now.live_bytes == start.live_bytes);
  CHECK(now.cached_bytes == 2 * held);
  CHECK(now.peak_bytes == start.live_bytes + 2 * held);
  {
    const Tensor c = block(size);
    now = memory_stats();
    CHECK(now.hits == start.hits + 1);
    CHECK(now.misses == start.misses + 2);
    CHECK(now.cached_bytes == held);
    CHECK(now.live_bytes == start.live_bytes + held);
    CHECK(now.peak_bytes == start.live_bytes + 2 * held);
    reset_peak();
    CHECK(memory_stats().peak_bytes == start.live_bytes + held);
  }
  release_cached_memory();
  now = memory_stats();
  CHECK(now.cached_bytes == 0);
  CHECK(now.evictions == start.evictions + 2);
  CHECK(now.system_allocs == start.system_allocs + 2);
}

TEST_CASE("allocator: views and wrapped memory allocate no block") {
  const Tensor a = block(10000);
  const std::int64_t live = memory_stats().live_bytes;
  const Tensor v = a.alias({100}, {1}, 50);
  std::vector<float> mine(100);
  const Tensor w = Tensor::wrap(mine.data(), {100}, DType::f32);
  CHECK(memory_stats().live_bytes == live);
}

TEST_CASE("allocator: the last handle returns wrapped memory to its owner once") {
  int calls = 0;
  float mine[4] = {1, 2, 3, 4};
  {
    const auto count = [](void* c) { ++*static_cast<int*>(c); };
    Tensor w = Tensor::wrap(mine, {4}, DType::f32, count, &calls);
    const Tensor view = w.alias({2}, {1}, 2);
    w = {};
    CHECK(calls == 0);
    CHECK(view.data<float>()[0] == 3);
  }
  CHECK(calls == 1);
}

TEST_CASE("allocator: each category has its own counter") {
  const auto live = [](Category c) { return memory_stats().live_by_category[static_cast<int>(c)]; };
  const std::int64_t p0 = live(Category::parameter), g0 = live(Category::gradient),
                     o0 = live(Category::other);
  {
    Tensor p, g;
    {
      CategoryScope parameter(Category::parameter);
      p = block(1000);
      {
        CategoryScope gradient(Category::gradient);
        g = block(5000);
      }
      const Tensor more = block(64);
      CHECK(live(Category::parameter) == p0 + 1024 + 64);
    }
    const Tensor o = block(64);
    CHECK(live(Category::parameter) == p0 + 1024);
    CHECK(live(Category::gradient) == g0 + 5120);
    CHECK(live(Category::other) == o0 + 64);
  }
  CHECK(live(Category::parameter) == p0);
  CHECK(live(Category::gradient) == g0);
  CHECK(live(Category::other) == o0);
  CHECK(std::string(name(Category::communication)) == "communication");
}

TEST_CASE("allocator: the meta device counts the bytes that the CPU would allocate") {
  const MemoryStats cpu = memory_stats(kCpu), meta = memory_stats(kMeta);
  {
    const Tensor t = Tensor::empty({1000, 1000}, DType::f64, kMeta);
    CHECK(memory_stats(kMeta).live_bytes == meta.live_bytes + size_class_bytes(8000000));
    CHECK(memory_stats(kCpu).live_bytes == cpu.live_bytes);
  }
  CHECK(memory_stats(kMeta).live_bytes == meta.live_bytes);
}

}  // namespace weft::allocator_test
