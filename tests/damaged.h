#pragma once
// Reads randomly damaged copies of a file and bounds the memory that reading takes.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/io/file.h"
#include "weft/tests/count_new.h"
#include "weft/tests/mutations.h"

namespace weft::test {

// Without AtomicFile: thousands of test files need not be durable.
inline void put(const std::string& path, const std::string& bytes) {
  io::remove_all(path);
  io::append_file(path, bytes);
}

// Reads damaged copies of a valid file: only Error may be thrown. The undamaged file must load.
inline void survives(const std::string& seed, const std::function<void(const std::string&)>& read) {
  constexpr int kMutations = 1500;
  read(seed);  // what is made once does not count
  const long own_news = heap_use([&] { read(seed); }).news;
  Mutations mutations(seed.size());
  int refused = 0;
  long most_heap = 0, most_news = 0;
  std::int64_t most_tensors = 0;
  for (int i = 0; i < kMutations; ++i) {
    const std::string input = mutations.of(seed);
    CAPTURE(i);
    reset_peak(kCpu);
    const std::int64_t before = memory_stats(kCpu).live_bytes;
    const HeapUse use = heap_use([&] {
      try {
        read(input);
      } catch (const Error&) {
        ++refused;
      }
    });
    most_heap = std::max(most_heap, use.peak);
    most_news = std::max(most_news, use.news);
    most_tensors = std::max(most_tensors, memory_stats(kCpu).peak_bytes - before);
  }
  CHECK(refused > kMutations / 4);  // otherwise the reader does not look at the bytes
  CHECK(most_heap < 4'000'000);
  // Beyond those of the undamaged file: a config file's include the program's flags.
  CHECK(most_news < own_news + 3'000);
  CHECK(most_tensors < 100'000);
}

}  // namespace weft::test
