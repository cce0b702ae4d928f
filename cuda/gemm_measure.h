#pragma once
#include <functional>
#include <limits>

#include "weft/core/cuda.h"
#include "weft/core/tensor.h"
#include "weft/cuda/gemm_choices.h"
#include "weft/cuda/gemm_plan.h"

namespace weft::cuda {

/// Whether products that run for the first time are timed. See GemmChoices.
inline bool measures_products() { return GemmChoices::get().measuring(); }

/// Milliseconds of the GPU for one call of run(), the least of several rounds. Waits.
template <class F>
double shortest_ms(const Stream& stream, F&& run) {
  constexpr int kRounds = 5, kCalls = 4;
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    Event from(true), to(true);
    from.record(stream);
    for (int i = 0; i < kCalls; ++i) run();
    to.record(stream);
    to.synchronize_unchecked();
    least = std::min(least, to.since(from) / kCalls);
  }
  return least;
}

/// Measures the product and keeps the choice, unless it is known. Nothing runs inside a capture.
void measure_once(const Product& p, const ProductData& data);

/// The same for a product with an epilogue; also measures parts(out), which computes the same in
/// several kernels, and keeps what is faster.
void measure_once(const Product& p, const ProductData& data, const Tensor& out,
                  const std::function<void(const Tensor& out)>& parts);

/// Runs the product with its epilogue in one call; or parts(out) where the library has no such
/// call, or where it is measured to be slower.
template <class Parts>
void run_fused(const Product& p, const ProductData& data, const Tensor& out, Parts&& parts) {
  if (measures_products()) [[unlikely]]
    measure_once(p, data, out, parts);
  if (!try_product(p, data)) parts(out);
}

}  // namespace weft::cuda
