#include "weft/core/cpu/fma_loop.h"

#include <algorithm>
#include <ctime>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "weft/core/cpu/simd.h"
#include "weft/core/peak_flops.h"

// Twelve independent sums hide the latency of two pipelines. Each is a separate variable, because
// an array would be kept in memory, and passes through an empty asm, so that the compiler cannot
// detect that all twelve are equal.
namespace weft::cpu {
namespace {

#define WEFT_TWELVE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

#if defined(__x86_64__)
#define WEFT_DECLARE(i) \
  auto s##i = zero;     \
  asm volatile("" : "+v"(s##i));
#define WEFT_KEEP(i) asm volatile("" : : "v"(s##i));

[[gnu::target("avx512f")]] void fma_avx512(std::int64_t steps) {
  const __m512 zero = _mm512_setzero_ps(), factor = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1);
#define WEFT_STEP(i) s##i = _mm512_fmadd_ps(s##i, factor, one);
  WEFT_TWELVE(WEFT_DECLARE)
  for (std::int64_t k = 0; k < steps; ++k) {
    WEFT_TWELVE(WEFT_STEP)
  }
  WEFT_TWELVE(WEFT_KEEP)
#undef WEFT_STEP
}

[[gnu::target("avx2,fma")]] void fma_avx2(std::int64_t steps) {
  const __m256 zero = _mm256_setzero_ps(), factor = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1);
#define WEFT_STEP(i) s##i = _mm256_fmadd_ps(s##i, factor, one);
  WEFT_TWELVE(WEFT_DECLARE)
  for (std::int64_t k = 0; k < steps; ++k) {
    WEFT_TWELVE(WEFT_STEP)
  }
  WEFT_TWELVE(WEFT_KEEP)
#undef WEFT_STEP
}
#undef WEFT_KEEP
#undef WEFT_DECLARE
#endif

void fma_scalar(std::int64_t steps) {
  volatile float start = 0, half = 0.5f, kept;
  const float factor = half;
#define WEFT_DECLARE(i) float s##i = start;
#define WEFT_STEP(i) s##i = s##i * factor + 1.0f;
#define WEFT_KEEP(i) kept = s##i;
  WEFT_TWELVE(WEFT_DECLARE)
  for (std::int64_t k = 0; k < steps; ++k) {
    WEFT_TWELVE(WEFT_STEP)
  }
  WEFT_TWELVE(WEFT_KEEP)
  (void)kept;
#undef WEFT_KEEP
#undef WEFT_STEP
#undef WEFT_DECLARE
}
#undef WEFT_TWELVE

}  // namespace

FmaLoop fma_loop() {
#if defined(__x86_64__)
  if (find_simd("avx512")) return {"AVX-512", fma_avx512, 12 * 16 * 2};
  if (find_simd("avx2")) return {"AVX2", fma_avx2, 12 * 8 * 2};
#endif
  return {"scalar", fma_scalar, 12 * 2};
}

}  // namespace weft::cpu

namespace weft {
namespace {

// Processor time of this thread: the clock stops while another program runs.
double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

double measure_thread_flops() {
  constexpr std::int64_t kSteps = 1 << 16;
  constexpr int kTries = 5;
  const cpu::FmaLoop loop = cpu::fma_loop();
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    const double start = processor_seconds();
    loop.run(kSteps);
    best = std::max(best, loop.flops_per_step * static_cast<double>(kSteps) /
                              std::max(processor_seconds() - start, 1e-9));
  }
  return best;
}

}  // namespace weft
