// Blocks and the cache: sizes, reuse, and what goes back to the system.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/tests/allocator_support.h"
#include "weft/tests/count_new.h"
#include "weft/tests/sanitized.h"
#include "weft/tests/support.h"

namespace weft::allocator_test {
namespace {

void touch(const Tensor& t) {
  auto* p = static_cast<volatile char*>(t.raw());
  for (std::int64_t i = 0; i < t.numel(); i += 4096) p[i] = 1;
}

// Whether the page that contains p is mapped into this process.
bool mapped(void* p) {
  unsigned char resident = 0;
  void* page = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(p) & ~std::uintptr_t{4095});
  return mincore(page, 1, &resident) == 0;
}

std::int64_t virtual_bytes() {
  long pages = 0;
  std::FILE* f = std::fopen("/proc/self/statm", "r");
  REQUIRE(f != nullptr);
  REQUIRE(std::fscanf(f, "%ld", &pages) == 1);
  std::fclose(f);
  return pages * sysconf(_SC_PAGE_SIZE);
}

struct NoLimitAfter {
  ~NoLimitAfter() { set_max_cached_bytes(std::int64_t{1} << 40); }
};

}  // namespace

TEST_CASE("allocator: size classes are monotone, whole cache lines and waste little") {
  CHECK(size_class_bytes(0) == 0);
  std::int64_t previous = 0;
  const auto check_size = [&](std::int64_t bytes) {
    const std::int64_t got = size_class_bytes(bytes);
    CHECK(got >= bytes);
    CHECK(got >= previous);
    CHECK(got % 64 == 0);
    CHECK(got - bytes <= std::max<std::int64_t>(63, bytes / 8));
    CHECK(size_class_bytes(got) == got);
    previous = got;
  };
  for (std::int64_t bytes = 1; bytes <= 5000; ++bytes) check_size(bytes);
  for (std::int64_t bytes = 5001; bytes < std::int64_t{1} << 46; bytes += bytes / 37)
    check_size(bytes);
  for (int k = 13; k < 46; ++k) {
    previous = 0;
    for (const std::int64_t d : {-1, 0, 1}) check_size((std::int64_t{1} << k) + d);
  }
}

TEST_CASE("allocator: every block starts on a cache line, a large one on a huge page") {
  for (const std::int64_t bytes :
       {1l, 64l, 65l, 1000l, 1152l, 5000l, 70000l, 1500000l, 2 * kMiB, 5 * kMiB + 1}) {
    const Tensor a = block(bytes), b = block(bytes);
    for (const Tensor& t : {a, b}) {
      CHECK(reinterpret_cast<std::uintptr_t>(t.raw()) % 64 == 0);
      if (bytes >= 2 * kMiB) CHECK(reinterpret_cast<std::uintptr_t>(t.raw()) % (2 * kMiB) == 0);
      touch(t);
    }
    CHECK(a.raw() != b.raw());
  }
}

TEST_CASE("allocator: a freed block is the next one of its class") {
  for (const std::int64_t bytes : {100l, 40000l, 100000l, 3 * kMiB}) {
    Tensor a = block(bytes);
    void* const p = a.raw();
    a = {};
    Tensor other = block(2 * bytes);
    CHECK(other.raw() != p);
    CHECK(block(size_class_bytes(bytes)).raw() == p);
  }
}

TEST_CASE("allocator: a large block also serves a request of at least half its size") {
  release_cached_memory();
  const MemoryStats start = memory_stats();
  const auto live = [&] { return memory_stats().live_bytes - start.live_bytes; };
  const auto cached = [&] { return memory_stats().cached_bytes; };
  const void* const p = block(12 * kMiB).raw();
  CHECK(cached() == 12 * kMiB);
  for (int pass = 0; pass < 2; ++pass) {
    const Tensor half = block(6 * kMiB + 1);
    CHECK(half.raw() == p);
    CHECK(live() == size_class_bytes(6 * kMiB + 1));
    CHECK(cached() == pass * 6 * kMiB);
    touch(half);
    const Tensor another = block(6 * kMiB);  // none is free: a new mapping
    CHECK(another.raw() != p);
  }
  CHECK(cached() == 18 * kMiB);
  {
    const Tensor exact = block(6 * kMiB);  // its own class comes first
    CHECK(exact.raw() != p);
    const Tensor small = block(11 * kMiB / 2);  // less than half of the free block
    CHECK(small.raw() != p);
    const Tensor whole = block(12 * kMiB);
    CHECK(whole.raw() == p);
    CHECK(live() == 47 * kMiB / 2);
  }
  CHECK(cached() == 47 * kMiB / 2);
  const void* slab_block = block(kMiB).raw();  // small blocks stay within their own class
  CHECK(block(kMiB - kMiB / 8).raw() != slab_block);
  release_cached_memory();
  CHECK(memory_stats().live_bytes == start.live_bytes);
}

TEST_CASE("allocator: live blocks never overlap") {
  std::vector<Tensor> live;
  std::uint64_t x = 1;
  for (int i = 0; i < 3000; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    if (live.size() > 100) {
      const std::size_t k = (x >> 33) % live.size();
      const Tensor& t = live[k];
      const auto* p = t.data<std::uint8_t>();
      const std::uint8_t mark = p[0];
      CHECK(std::all_of(p, p + t.numel(), [&](std::uint8_t v) { return v == mark; }));
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(k));
    }
    live.push_back(block(static_cast<std::int64_t>(1 + (x >> 40) % 3000)));
    live.back().fill_(i % 251);
  }
}

TEST_CASE("allocator: above the cap the least recently used block is evicted first") {
  NoLimitAfter restore;
  release_cached_memory();
  set_max_cached_bytes(15 * kMiB);
  Tensor a = block(4 * kMiB), b = block(5 * kMiB), c = block(6 * kMiB), d = block(3 * kMiB);
  void *const pa = a.raw(), *const pb = b.raw(), *const pc = c.raw(), *const pd = d.raw();
  a = {};
  b = {};
  c = {};
  const std::int64_t evictions = memory_stats().evictions;
  CHECK(memory_stats().cached_bytes == 15 * kMiB);
  a = block(4 * kMiB);  // used again, so b is the oldest now
  CHECK(a.raw() == pa);
  a = {};
  CHECK(memory_stats().evictions == evictions);
  d = {};
  CHECK(memory_stats().evictions == evictions + 1);
  CHECK_FALSE(mapped(pb));
  for (void* p : {pa, pc, pd}) CHECK(mapped(p));
  CHECK(memory_stats().cached_bytes == 13 * kMiB);
  set_max_cached_bytes(7 * kMiB);
  CHECK_FALSE(mapped(pc));
  for (void* p : {pa, pd}) CHECK(mapped(p));
  set_max_cached_bytes(0);
  for (void* p : {pa, pd}) CHECK_FALSE(mapped(p));
  CHECK(memory_stats().cached_bytes == 0);
  CHECK(test::error_of([] { set_max_cached_bytes(-1); }) ==
        "set_max_cached_bytes: must be at least 0, got -1");
}

TEST_CASE("allocator: a slab returns to the system with its last block") {
  if (test::address_sanitized) return;  // it maps memory of its own, also where a slab was
  const auto round = [](bool keep_one) {
    std::vector<Tensor> many;
    for (int i = 0; i < 8192; ++i) {
      many.push_back(block(1024));
      touch(many.back());
    }
    std::vector<void*> at;
    for (const Tensor& t : many) at.push_back(t.raw());
    const Tensor kept = keep_one ? many[4000] : Tensor();
    many.clear();
    release_cached_memory();
    int still = 0;
    for (void* p : at) still += mapped(p);
    return still;
  };
  round(false);
  const std::int64_t before = virtual_bytes();
  CHECK(round(false) == 0);
  CHECK(virtual_bytes() <= before);
  CHECK(round(true) == 64);  // the slab of the live block: 64 KiB
  release_cached_memory();
  CHECK(virtual_bytes() <= before);
}

TEST_CASE("allocator: without memory there is one clear error and the process continues") {
  Fault fault = Fault::user;
  std::string text;
  const std::int64_t live = memory_stats().live_bytes;
  try {
    block(std::int64_t{1} << 47);  // the whole address space
  } catch (const Error& e) {
    fault = e.fault();
    text = e.what();
  }
  CHECK(fault == Fault::system);
  CHECK(text == message("allocate: the system has no memory for 140737488355328 bytes: {} are live "
                        "({}) and 0 cached, after the cache was emptied; use a smaller batch, "
                        "or recompute",
                        live, live ? message("{} other", live) : std::string("nothing")));
  CHECK(test::error_of([] { block(std::int64_t{1} << 50); }) ==
        "allocate: too large, got 1125899906842624 bytes");
  CHECK(memory_stats().live_bytes == live);
  CHECK(block(100).numel() == 100);
}

TEST_CASE("allocator: if the system refuses, the cache is released and the request repeated") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    release_cached_memory();
    { const Tensor cached = block(256 * kMiB); }
    const auto room = static_cast<rlim_t>(virtual_bytes() + 32 * kMiB);
    const rlimit limit = {room, room};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(3);
    try {
      const Tensor t = block(200 * kMiB);
      touch(t);
      _exit(memory_stats().evictions > 0 ? 0 : 4);
    } catch (const Error&) {
      _exit(5);
    }
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("allocator: a million blocks in a steady loop allocate nothing") {
  const std::int64_t sizes[] = {64, 500, 3000, 20000, 65536, 100000, kMiB, 5 * kMiB};
  const auto loop = [&](int n) {
    Tensor held[4];
    for (int i = 0; i < n; ++i) held[i % 4] = block(sizes[i % 8]);
  };
  loop(100);
  const MemoryStats start = memory_stats();
  const long news = test::news;
  loop(1000000);
  CHECK(test::news == news);
  CHECK(memory_stats().system_allocs == start.system_allocs);
  CHECK(memory_stats().misses == start.misses);
  CHECK(memory_stats().hits == start.hits + 1000000);
}

TEST_CASE("allocator: headers of views, meta and empty tensors are recycled") {
  const Tensor base = block(1000);
  float mine[4];
  const auto loop = [&] {
    for (int i = 0; i < 1000; ++i) {
      const Tensor v = base.alias({10}, {2}, 3);
      const Tensor copy = v;
      const Tensor m = Tensor::empty({1000}, DType::bf16, kMeta);
      const Tensor none = Tensor::empty({0});
      const Tensor w = Tensor::wrap(mine, {4}, DType::f32);
    }
  };
  loop();
  const long news = test::news;
  loop();
  CHECK(test::news == news);
}

}  // namespace weft::allocator_test
