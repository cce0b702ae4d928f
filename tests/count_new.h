#pragma once
// Counts every operator new and delete of the process, shared libraries included: tests/count_new.cpp
// replaces the global operators of every test program.
#include <atomic>

namespace weft::test {
extern std::atomic<long> news, deletes;
}  // namespace weft::test
