#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/tests/count_cases.h"

// ctest reports this status as "skipped".
constexpr int kSkipped = 77;

int main(int argc, char** argv) {
  try {
    weft::cuda::check_device({weft::Device::Kind::cuda, 0});
  } catch (const weft::Error& e) {  // no GPU, or a driver that is older than the toolkit
    std::printf("skipped: %s\n", e.what());
    return kSkipped;
  }
  doctest::Context context(argc, argv);
  return weft::test::status_of_run(context, context.run());
}
