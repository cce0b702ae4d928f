// The record of live blocks: what the allocator counts, at every moment.
#include <doctest/doctest.h>

#include <thread>

#include "weft/core/allocator.h"
#include "weft/core/memory_trace.h"
#include "weft/core/profile.h"
#include "weft/tests/support.h"

namespace weft::memory_trace_test {
namespace {

using test::error_of;

constexpr int kOther = static_cast<int>(Category::other),
              kGradient = static_cast<int>(Category::gradient);

Tensor bytes_of(std::int64_t n, Device device = kCpu) {
  return Tensor::empty({n}, DType::u8, device);
}

}  // namespace

TEST_CASE("memory trace: the peak, its categories and its blocks") {
  const Tensor earlier = bytes_of(640);
  const std::int64_t before = memory_stats().live_bytes;
  reset_peak();
  MemoryTrace trace({kCpu});
  Tensor a = bytes_of(100);  // size classes of 64 bytes
  std::int64_t begin = 0;
  {
    const CategoryScope category(Category::gradient);
    const Tensor b = bytes_of(1000), empty = bytes_of(0);
    begin = trace.events();
    a = {};
  }
  CHECK(begin == 2);
  CHECK(trace.events() == 4);
  const MemoryTrace::Peak peak = trace.peak();
  CHECK(peak.event == 2);
  CHECK(peak.live.total() == memory_stats().peak_bytes - before);
  CHECK(peak.live.by_category[kOther] == 128);
  CHECK(peak.live.by_category[kGradient] == 1024);
  REQUIRE(peak.blocks.size() == 2);
  CHECK(peak.blocks[1].bytes == 1024);
  CHECK(peak.blocks[1].category == Category::gradient);
  CHECK(MemoryTrace::scopes_of(peak.blocks[0]).empty());
  const std::vector<LiveBytes> course = trace.course(begin);
  REQUIRE(course.size() == 3);
  CHECK(course[0] == peak.live);
  CHECK(course[1].total() == 1024);
  CHECK(course[2] == LiveBytes{});
  // From then on, the moment itself is the highest.
  CHECK(trace.peak(begin).event == begin);
  CHECK(trace.peak(trace.events()).live.total() == 0);
}

TEST_CASE("memory trace: released storage, reused headers, large and meta blocks") {
  MemoryTrace trace({kCpu, kMeta});
  Tensor a = bytes_of(5 << 20), b = bytes_of(300, kMeta);
  release_storage(a);
  CHECK(trace.peak(trace.events()).live.total() == size_class_bytes(300));
  a = bytes_of(5 << 20);
  b = bytes_of(300, Device{Device::Kind::meta_cuda, 0});  // not traced
  CHECK(trace.peak(trace.events()).live.total() == size_class_bytes(5 << 20));
  {
    const UntracedScope untraced;
    const Tensor made_up = bytes_of(1 << 16);
  }
  std::thread([] { const Tensor other = bytes_of(1 << 16); }).join();
  CHECK(trace.events() == 5);
}

TEST_CASE("memory trace: blocks have the scope of a running profile") {
  Profiler profiler;
  profiler.start("forward");
  const MemoryTrace trace({kCpu});
  Tensor in, out;
  {
    const ProfileScope outer("block"), inner("mlp");
    in = bytes_of(64);
  }
  out = bytes_of(64);
  profiler.stop();
  CHECK(MemoryTrace::scopes_of(trace.blocks()[0]) == std::vector<std::string>{"block", "mlp"});
  CHECK(MemoryTrace::scopes_of(trace.blocks()[1]).empty());
}

TEST_CASE("memory trace: with the debug allocator, and one a thread") {
  set_debug_allocator(true);
  {
    const MemoryTrace trace({kCpu});
    const Tensor a = bytes_of(1000);
    CHECK(trace.events() == 1);
    CHECK(debug_allocator());
    CHECK(error_of([] { const MemoryTrace second({kCpu}); }) ==
          "memory trace: this thread must have no other trace, has one");
  }
  CHECK(debug_allocator());
  set_debug_allocator(false);
  const Tensor after = bytes_of(1000);
  const MemoryTrace trace({kCpu});
  CHECK(trace.events() == 0);
}

}  // namespace weft::memory_trace_test
