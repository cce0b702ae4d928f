#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "weft/core/allocator.h"
#include "weft/core/storage.h"
#include "weft/core/tensor.h"

namespace weft::uncounted_test {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

}  // namespace

TEST_CASE("uncounted: a block shows nowhere and its memory serves again") {
  release_cached_memory();
  MemoryStats start = memory_stats();
  reset_peak();
  const auto same = [&](std::int64_t cached) {
    const MemoryStats now = memory_stats();
    CHECK(now.live_bytes == start.live_bytes);
    CHECK(now.peak_bytes == start.live_bytes);
    CHECK(now.hits == start.hits);
    CHECK(now.misses == start.misses);
    CHECK(now.cached_bytes == cached);
  };
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{100}, 3 * kMiB}) {
    Storage* const first = take_uncounted(bytes);
    void* const data = first->data;
    std::memset(data, 1, static_cast<std::size_t>(bytes));
    same(0);
    Storage* const second = take_uncounted(bytes);
    CHECK(second->data != data);
    give_back_uncounted(first);
    const std::int64_t room = size_class_bytes(std::max<std::int64_t>(bytes, 1));
    same(room);
    CHECK(take_uncounted(bytes)->data == data);
    same(0);
    give_back_uncounted(first);
    give_back_uncounted(second);
    same(2 * room);
    CHECK(Tensor::empty({room}, DType::u8).raw() == second->data);
    ++start.hits;
    release_cached_memory();
    CHECK(memory_stats().cached_bytes == 0);
    reset_peak();
  }
  CHECK(take_uncounted(std::int64_t{1} << 47) == nullptr);
  CHECK(take_uncounted(std::int64_t{1} << 50) == nullptr);
}

TEST_CASE("uncounted: a block is never one that a larger request may want") {
  release_cached_memory();
  void* const large = Tensor::empty({12 * kMiB}, DType::u8).raw();
  Storage* const half = take_uncounted(7 * kMiB);
  CHECK(half->data != large);
  CHECK(Tensor::empty({12 * kMiB}, DType::u8).raw() == large);
  std::thread([&] { give_back_uncounted(half); }).join();
  CHECK(memory_stats().cached_bytes == 12 * kMiB + size_class_bytes(7 * kMiB));
  CHECK(Tensor::empty({7 * kMiB}, DType::u8).raw() == half->data);
}

}  // namespace weft::uncounted_test
