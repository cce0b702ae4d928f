#include <doctest/doctest.h>

#include "weft/core/allocator.h"
#include "weft/core/gemm_check.h"
#include "weft/tests/support.h"

namespace weft::gemm_check_test {

TEST_CASE("gemm check: a product below half of the multiply-add rate gets a warning with advice") {
  CHECK(gemm_warning({.product = 31.4e9, .multiply_add = 111.6e9}) ==
        "matrix products run at 31 of the 112 GFLOP/s that multiply-adds reach on one thread; "
        "oneDNN seems to use kernels for another processor: unset ONEDNN_MAX_CPU_ISA and "
        "DNNL_MAX_CPU_ISA, or build Weft with a newer oneDNN");
  CHECK(!gemm_warning({.product = 49.9e9, .multiply_add = 100e9}).empty());
}

TEST_CASE("gemm check: half of the multiply-add rate and more gets no warning") {
  CHECK(gemm_warning({.product = 50e9, .multiply_add = 100e9}).empty());
  CHECK(gemm_warning({.product = 106e9, .multiply_add = 112e9}).empty());
  // On a CPU without vector instructions that Weft knows, Weft's loop is slower than any library.
  CHECK(gemm_warning({.product = 20e9, .multiply_add = 4e9}).empty());
}

TEST_CASE("gemm check: measures this machine and leaves the allocator's counters alone") {
  const MemoryStats before = memory_stats();
  const std::optional<GemmCheck> rates = check_gemm_speed();
  const MemoryStats after = memory_stats();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  CHECK(!rates);
#else
  REQUIRE(rates.has_value());
  // Holds on any slow machine; no thread is a hundred times faster than one of 2026.
  CHECK(rates->product > 0);
  CHECK(rates->product < 2e13);
  CHECK(rates->multiply_add > 0);
  CHECK(rates->multiply_add < 2e13);
#endif
  CHECK(after.hits == before.hits);
  CHECK(after.misses == before.misses);
  CHECK(after.system_allocs == before.system_allocs);
  CHECK(after.live_bytes == before.live_bytes);
  CHECK(after.peak_bytes == before.peak_bytes);
}

}  // namespace weft::gemm_check_test
