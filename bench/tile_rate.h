#pragma once
#include "weft/bench/harness.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"
#include "weft/core/tensor.h"

/// Roofs between the multiply-add peak and the rate of a product.
namespace weft::bench {

/// FLOP/s of all threads combined in the tiles of the in-tree product with both operands in L1:
/// what loads and the issue of instructions leave of the multiply-add peak.
inline double tile_rate() {
  const PanelKernels<float>& kernels = simd().panels<float>();
  constexpr std::int64_t kPanel = 4096;  // 16 KiB
  constexpr std::int64_t kCalls = 20'000;
  const std::int64_t k = kPanel / kernels.columns, m = kernels.rows, n = kernels.columns;
  const int threads = num_threads();
  const double seconds = median(7, [&] {
    const double start = now();
    parallel_for(threads, kCalls * m * n * k, [&](std::int64_t begin, std::int64_t end) {
      // The rows of a are a line longer than k: without that all lie in the same sets of L1.
      const Tensor a = Tensor::full({m, k + 16}, 0.5), panel = Tensor::full({kPanel}, 0.25),
                   c = Tensor::empty({m, n});
      for (std::int64_t call = begin * kCalls; call < end * kCalls; ++call)
        kernels.product({.a = a.data<float>(),
                         .lda = k + 16,
                         .panels = panel.data<float>(),
                         .c = c.data<float>(),
                         .ldc = n,
                         .m = m,
                         .n = n,
                         .k = k});
    });
    return now() - start;
  });
  return 2.0 * static_cast<double>(threads * kCalls * m * n * k) / seconds;
}

#if defined(__x86_64__)
/// Instructions that this thread issues in the time of an addition, which is one cycle, when they
/// wait for nothing. Lower than what the core is built for where it serves another thread at the
/// same time: that of a neighbour's virtual machine may keep half of the issue slots busy while
/// multiply-adds still reach their peak.
inline double issue_rate() {
  constexpr int kRuns = 1 << 16;
  return median(15, [] {
    std::int64_t x = 0;
    const double start = now();
    // A register is added: Intel's processors add small constants before they issue anything.
    for (int i = 0; i < kRuns; ++i) asm volatile(".rept 32\n\tadd %0, %0\n\t.endr" : "+r"(x));
    const double middle = now();
    // Of four bytes, as long as instructions are on average.
    for (int i = 0; i < kRuns; ++i)
      asm volatile(".rept 32\n\t.byte 0x0f, 0x1f, 0x40, 0x00\n\t.endr");
    return (middle - start) / (now() - middle);
  });
}
#else
inline double issue_rate() { return 0; }  // unknown
#endif

}  // namespace weft::bench
