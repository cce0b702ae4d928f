#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "weft/core/cuda.h"
#include "weft/tests/count_cases.h"

// ctest reports this status as "skipped".
constexpr int kSkipped = 77;

int main(int argc, char** argv) {
  if (weft::cuda::device_count() == 0) {
    std::puts("no GPU: skipped");
    return kSkipped;
  }
  doctest::Context context(argc, argv);
  return weft::test::status_of_run(context, context.run());
}
