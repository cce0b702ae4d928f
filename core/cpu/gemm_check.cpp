#include "weft/core/gemm_check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <vector>

#include "weft/core/cpu/fma_loop.h"
#include "weft/core/cpu/product.h"
#include "weft/core/error.h"

namespace weft {
namespace {

constexpr std::int64_t kSize = 256;  // three square matrices of 256 KiB fit in L2
constexpr std::int64_t kFmaSteps = 1 << 16;
constexpr int kTries = 5;
constexpr double kLongEnough = 0.01;  // seconds after which no new measurement starts
constexpr double kTooSlow = 0.5;  // fraction of the multiply-add rate; a suitable library reaches
                                  // 0.8 to 0.95

// CPU time of this thread: the clock stops while another program runs.
double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class F>
double seconds_of(F&& f) {
  const double start = processor_seconds();
  f();
  return std::max(processor_seconds() - start, 1e-9);
}

}  // namespace

std::optional<GemmCheck> check_gemm_speed() {
  // Not tensors, so that the memory statistics of a training run do not change.
  std::vector<float> a(kSize * kSize, 0.5f), b(kSize * kSize, 0.25f), c(kSize * kSize);
  const cpu::Product<float> product{a.data(), b.data(), c.data(), kSize, kSize, kSize,
                                    kSize,    kSize,    kSize,    false, true,  false};
  if (!cpu::for_library(product)) return std::nullopt;
  constexpr double kFlops = 2.0 * kSize * kSize * kSize;
  const cpu::FmaLoop loop = cpu::fma_loop();

  cpu::library_product(product);  // the first call generates the kernels
  GemmCheck best;
  const double start = processor_seconds();
  for (int i = 0; i < kTries && processor_seconds() - start < kLongEnough; ++i) {
    best.multiply_add =
        std::max(best.multiply_add, loop.flops_per_step * static_cast<double>(kFmaSteps) /
                                        seconds_of([&] { loop.run(kFmaSteps); }));
    best.product =
        std::max(best.product, kFlops / seconds_of([&] { cpu::library_product(product); }));
  }
  return best;
}

std::string gemm_warning(const GemmCheck& rates) {
  if (rates.product >= kTooSlow * rates.multiply_add) return {};
  return message(
      "matrix products run at {} of the {} GFLOP/s that multiply-adds reach on one thread; oneDNN "
      "seems to use kernels for another processor: unset ONEDNN_MAX_CPU_ISA and DNNL_MAX_CPU_ISA, "
      "or build Weft with a newer oneDNN",
      std::llround(rates.product * 1e-9), std::llround(rates.multiply_add * 1e-9));
}

}  // namespace weft
