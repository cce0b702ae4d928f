#pragma once
// Counts what operator new of the process hands out, shared libraries included: how often, and how
// much of it there is at a time. tests/count_new.cpp replaces the global operators of every test
// program.
#include <atomic>

namespace weft::test {

extern std::atomic<long> news, deletes, heap_bytes, heap_peak;

/// Allocations, and bytes beyond those that were there before.
struct HeapUse {
  long news = 0, peak = 0;
};
template <class F>
HeapUse heap_use(F&& f) {
  const long before = heap_bytes, calls = news;
  heap_peak = before;
  f();
  return {news - calls, heap_peak - before};
}

}  // namespace weft::test
