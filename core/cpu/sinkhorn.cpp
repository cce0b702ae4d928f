#include "weft/core/kernels/sinkhorn.h"

#include <algorithm>
#include <cmath>

#include "weft/core/cpu/router_rows.h"
#include "weft/core/parallel.h"

namespace weft::cpu {

void sinkhorn(const Tensor& logits, const Tensor& padding, std::int64_t rounds, const Tensor& rows,
              const Tensor& columns, const Tensor& partials, const Tensor& out) {
  const std::int64_t T = logits.dim(0), E = logits.dim(1);
  const bool* pad = data_or_null<bool>(padding);
  dispatch_floating(logits.dtype(), [&]<class X>() {
    using R = Real<X>;
    const X* x = logits.data<X>();
    R *d0 = rows.data<R>(), *d1 = columns.data<R>(), *parts = partials.data<R>();
    R* c = out.data<R>();
    std::int64_t tokens = T;
    for (std::int64_t t = 0; pad && t < T; ++t) tokens -= pad[t];
    const R row_sum = R(1) / static_cast<R>(std::max<std::int64_t>(tokens, 1));
    const R column_sum = R(1) / static_cast<R>(E), eps = static_cast<R>(kSinkhornEps);

    // Scales the largest element of a row to 1, so that nothing overflows; the row's factor absorbs
    // it.
    parallel_for(T, 16 * E, [=](std::int64_t begin, std::int64_t end) {
      alignas(64) R wide[kRouterExperts];
      for (std::int64_t t = begin; t < end; ++t) {
        const R* row = RouterRows<R>::widened(x + t * E, wide, E);
        const R top = RouterRows<R>::max(row, E);
        for (std::int64_t e = 0; e < E; ++e)
          c[t * E + e] = pad && pad[t] ? R(0) : std::exp(row[e] - top);
      }
    });
    std::fill_n(d1, E, R(1));
    for (std::int64_t round = 0; round < rounds; ++round) {
      parallel_for(kSinkhornParts, 4 * E * (T / kSinkhornParts + 1),
                   [=](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t part = begin; part < end; ++part) {
                       R* sums = parts + part * E;
                       std::fill_n(sums, E, R(0));
                       for (std::int64_t t = part; t < T; t += kSinkhornParts) {
                         const R* row = c + t * E;
                         d0[t] = row_sum / (RouterRows<R>::dot(row, d1, E) + eps);
                         for (std::int64_t e = 0; e < E; ++e) sums[e] += row[e] * d0[t];
                       }
                     }
                   });
      R change = 0;
      for (std::int64_t e = 0; e < E; ++e) {
        R sum = 0;
        for (std::int64_t part = 0; part < kSinkhornParts; ++part) sum += parts[part * E + e];
        const R next = column_sum / (sum + eps);
        change += std::abs(next - d1[e]);
        d1[e] = next;
      }
      if (!(change / static_cast<R>(E) > static_cast<R>(kSinkhornTolerance))) break;
    }
    parallel_for(T, 2 * E, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t)
        for (std::int64_t e = 0; e < E; ++e) c[t * E + e] *= d0[t] * d1[e];
    });
  });
}

}  // namespace weft::cpu
