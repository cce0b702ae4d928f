#include "weft/tests/count_new.h"

#include <malloc.h>

#include <cstdlib>
#include <new>

namespace weft::test {

std::atomic<long> news{0}, deletes{0}, heap_bytes{0}, heap_peak{0};

namespace {

void* counted(void* p) {
  if (!p) return p;
  news.fetch_add(1, std::memory_order_relaxed);
  const long now = heap_bytes += static_cast<long>(malloc_usable_size(p));
  long peak = heap_peak.load();
  while (now > peak && !heap_peak.compare_exchange_weak(peak, now)) {
  }
  return p;
}

void* or_throw(void* p) {
  if (!p) throw std::bad_alloc();
  return p;
}

void uncounted(void* p) {
  if (!p) return;
  deletes.fetch_add(1, std::memory_order_relaxed);
  heap_bytes -= static_cast<long>(malloc_usable_size(p));
  std::free(p);
}

}  // namespace
}  // namespace weft::test

// Not inlined, because the compiler would see new paired with free.
[[gnu::noinline]] void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  return weft::test::counted(std::malloc(n ? n : 1));
}
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t align,
                                     const std::nothrow_t&) noexcept {
  const auto a = static_cast<std::size_t>(align);
  return weft::test::counted(std::aligned_alloc(a, (n + a - 1) / a * a));
}
[[gnu::noinline]] void* operator new(std::size_t n) {
  return weft::test::or_throw(operator new(n, std::nothrow));
}
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t align) {
  return weft::test::or_throw(operator new(n, align, std::nothrow));
}
[[gnu::noinline]] void operator delete(void* p) noexcept { weft::test::uncounted(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { weft::test::uncounted(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  weft::test::uncounted(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  weft::test::uncounted(p);
}
