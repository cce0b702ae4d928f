#pragma once
// Counts the process's operator new calls and the peak of allocated bytes, shared libraries
// included. tests/count_new.cpp replaces the global operators of every test program.
#include <atomic>

namespace weft::test {

extern std::atomic<long> news, deletes, heap_bytes, heap_peak;

/// Number of allocations, and the peak of bytes above the starting level.
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
