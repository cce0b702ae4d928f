#include "weft/tests/count_new.h"

#include <cstdlib>
#include <new>

namespace weft::test {
std::atomic<long> news{0}, deletes{0};
}  // namespace weft::test

// Not inlined, or the compiler sees new paired with free.
[[gnu::noinline]] void* operator new(std::size_t n) {
  weft::test::news.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t n, std::align_val_t align) {
  weft::test::news.fetch_add(1, std::memory_order_relaxed);
  const auto a = static_cast<std::size_t>(align);
  if (void* p = std::aligned_alloc(a, (n + a - 1) / a * a)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  weft::test::deletes.fetch_add(p != nullptr, std::memory_order_relaxed);
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept {
  weft::test::deletes.fetch_add(p != nullptr, std::memory_order_relaxed);
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept {
  weft::test::deletes.fetch_add(p != nullptr, std::memory_order_relaxed);
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  weft::test::deletes.fetch_add(p != nullptr, std::memory_order_relaxed);
  std::free(p);
}
