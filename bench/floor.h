#pragma once
#include <algorithm>

#include "weft/bench/models.h"

/// A lower bound on the time of one training step on a machine with known rates. Two costs are
/// unavoidable: the multiplications of the products, and the bytes that everything else moves.
///
///   floor = product FLOPs / GEMM rate + block bytes / L2 copy rate
///           + near bytes / cache copy rate + far bytes / memory copy rate
///
/// Products. 6 FLOPs per weight and token (forward, gradient of the input, gradient of the weight),
/// and attention over the (T + 1) / 2 tokens that a causal row sees on average. Recomputation in
/// backward does not count: flash attention's repeated scores are the price of an algorithm. The
/// GEMM rate is the machine's best over large shapes and includes the reads and writes of a
/// product. So an op fused into a product costs only the bytes that it adds.
///
/// Bytes, in f32 arrays of `tokens x C` (R: read, W: written), the best fusion assumed:
///   bias               forward and backward inside products and the passes below         0
///   residual + norm    R residual (in the product before), R sum, W y; twice a layer     3 + 3
///   its backward       R dy, R sum*, R gradient of the residual, W dx; twice a layer     4 + 4
///   GELU               W u* beside gelu(u), in the product before; 4 C wide              4
///   its backward       R u* in the product before; 4 C wide                              4
///   attention          R o*, R do for the row sums of backward                           2
///   final norm         R residual, R sum, W y;  R dy, R sum*, W dx                       3 + 3
///   embedding          R row, W x;  R dx, R and W gradient row                           2 + 3
/// and in addition
///   attention scores   T / 2 per head and row: R, W of softmax; backward R, W of the
///                      probabilities, R, R, W of their gradient: 7 times 4 bytes, in L2 blocks
///   loss               tokens x V logits in L2 blocks: R for the sum, R and W of the gradient
///   gradient norm      R gradient: 4 bytes per parameter
///   AdamW              R p, g, m, v, W p, m, v: 28 bytes per parameter
///
/// Near bytes move at the speed of the last-level cache: short-lived arrays that fit in it. Arrays
/// kept from forward to backward (*, and the operands that products read again: y, gelu(u), q, k,
/// v) are read last-in first-out, so of the `saved` bytes the cache can hold its own size, and only
/// the rest is far. Parameters and their states are far by the same rule.
///
/// Not counted, so that the result stays a lower bound: arithmetic outside products (exp, rsqrt),
/// which bench/arithmetic.h measures, thread start-up, tile edges, and the difference between a
/// product's shape and the best shape.
namespace weft::bench {

struct StepWork {
  double product_flops = 0;
  double block_bytes = 0, near_bytes = 0, far_bytes = 0;
};

inline StepWork step_work(const StepModel& m, double cache_bytes) {
  const nn::GptConfig c = m.counted();
  const auto tokens = static_cast<double>(m.step_tokens());
  const auto layers = static_cast<double>(c.layers);
  const double array = 4.0 * tokens * static_cast<double>(c.dim);
  const auto parameters = static_cast<double>(m.config.parameter_count());

  // Per layer: two sums, u and gelu(u), y twice, q, k, v and o.
  const double saved = array * (layers * (2 + 4 + 4 + 2 + 3 + 1) + 2);
  const auto missed = [&](double footprint) {
    return std::max(0.0, 1 - cache_bytes / std::max(footprint, 1.0));
  };

  StepWork w;
  w.product_flops = tokens * c.flops_per_token();
  const auto add = [&](double bytes, double far_part) {
    w.far_bytes += bytes * far_part;
    w.near_bytes += bytes * (1 - far_part);
  };
  // Written in forward for backward: y (2), u (4); read in backward: the sums (2), u (4), o (1).
  const double kept = layers * (2 + 4 + 2 + 4 + 1) + 2;
  const double passing = layers * (6 + 8 + 4 + 4 + 2) + 6 + 5 - kept;
  add(array * kept, missed(saved));
  add(array * passing, missed(4 * array));
  const double scores = tokens * layers * static_cast<double>(c.heads * (c.seq + 1)) / 2;
  w.block_bytes = 4 * (7 * scores + 3 * tokens * static_cast<double>(c.vocab));
  add(parameters * (28 + 4), missed(parameters * 16));
  return w;
}

struct Rates {
  double gemm = 0;                      ///< FLOP/s
  double block = 0, near = 0, far = 0;  ///< bytes read and written per second
};

inline double floor_seconds(const StepWork& w, const Rates& r) {
  return w.product_flops / r.gemm + w.block_bytes / r.block + w.near_bytes / r.near +
         w.far_bytes / r.far;
}

}  // namespace weft::bench
