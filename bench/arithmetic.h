#pragma once
#include <vector>

#include "weft/bench/models.h"
#include "weft/bench/timing.h"
#include "weft/core/cpu/simd.h"
#include "weft/core/parallel.h"

/// The arithmetic of a step that its floor (bench/floor.h) leaves out because the floor counts
/// bytes only: Weft's kernels other than products. Measured on arrays that stay in the L1 cache,
/// with all threads busy. It can overlap with passes over memory, but not with products, which use
/// the same units.
namespace weft::bench {

struct ArithmeticSeconds {
  double gelu = 0, softmax = 0, norm = 0, loss = 0;
  double total() const { return gelu + softmax + norm + loss; }
};

namespace detail {

inline constexpr std::int64_t kCachedElements = 2048;  // 8 KiB per array

/// Seconds for `elements`, of which each f(arrays) processes `each`; every thread has eight arrays.
template <class F>
double cached_seconds(double elements, std::int64_t each, F f) {
  const std::int64_t calls = (1 << 20) / each;
  const int threads = num_threads();
  const double seconds = seconds_per_call([&] {
    parallel_for(threads, calls * each, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> memory(8 * kCachedElements, 0.5f);
      for (std::int64_t i = begin * calls; i < end * calls; ++i) f(memory.data());
    });
  });
  return seconds * elements / static_cast<double>(calls * threads * each);
}

}  // namespace detail

/// One step of the model, in f32.
inline ArithmeticSeconds arithmetic_seconds(const StepModel& m) {
  constexpr std::int64_t n = detail::kCachedElements, kGroup = 16, kKeys = n / kGroup;
  const auto layers = static_cast<double>(m.config.layers);
  const auto tokens = static_cast<double>(m.step_tokens());
  const RowKernels<float>& f = simd().f32;
  const AttentionKernels& a = simd().attention;
  const std::int64_t dim = m.config.dim;

  ArithmeticSeconds s;
  s.gelu = detail::cached_seconds(4 * layers * tokens * static_cast<double>(dim), n, [&](float* x) {
    f.gelu_tanh(x, x + n, n);
    f.gelu_tanh_bwd(x, x + n, x + 2 * n, n);
  });
  LaneKeys keys{0, 0, kKeys, kKeys, {}, {}};
  std::fill_n(keys.stop, kGroup, static_cast<float>(kKeys));
  const double scores = tokens * layers * static_cast<double>(m.config.heads * (m.tokens + 1)) / 2;
  s.softmax = detail::cached_seconds(scores, n, [&](float* x) {
    float* const of_query = x + 3 * n;  // one number per query of the group
    a.softmax_step(x, kGroup, keys, of_query, of_query + kGroup, of_query + 2 * kGroup);
    a.probabilities(x + n, kGroup, keys, of_query);
    a.scores_bwd(x + n, x + 2 * n, kGroup, keys, of_query, 1.0f);
  });
  const double normed = (2 * layers + 1) * tokens * static_cast<double>(dim);
  s.norm = detail::cached_seconds(normed, dim, [&](float* x) {
    float mean, rstd;
    f.layer_norm(x, x + n, x + 2 * n, 0, x + 3 * n, 1e-5f, x + 4 * n, x + 5 * n, dim, &mean, &rstd);
    f.layer_norm_bwd(x, x + n, x + 2 * n, 0, x + 4 * n, mean, rstd, x + 5 * n, x + 6 * n, x + 7 * n,
                     dim);
  });
  const double logits = tokens * static_cast<double>(m.config.vocab);
  s.loss = detail::cached_seconds(logits, n, [&](float* x) {
    x[2 * n] = f.sum_exp(x, 0.5f, n);
    f.cross_entropy_bwd(x, 0.5f, 0.1f, 0.0f, x + n, n);
  });
  return s;
}

}  // namespace weft::bench
