#pragma once
#include "weft/autograd/router.h"
#include "weft/core/kernels/expert_capacity.h"

namespace weft {

/// The number of tokens that an expert can take: ceil(tokens * topk / experts * factor). With
/// factor 1 and an even load no token is dropped.
///
/// Throws   Error unless tokens >= 0, topk >= 1, experts >= 1 and factor in (0, 1e6]
/// Source   Fedus et al. 2021, arXiv:2101.03961, eq. 3
std::int64_t expert_capacity(std::int64_t tokens, std::int64_t experts, std::int64_t topk,
                             double factor);

/// Drops tokens above an expert's capacity: such a slot gets expert -1 and probability 0. Other
/// probabilities stay unchanged. A token dropped by all its experts passes through the residual
/// stream only. With capacity >= T nothing is dropped.
///
/// Shapes   routing (T, k)  ->  (T, k)
/// Dtypes   as route returns them
/// Device   cpu, cuda, meta
/// Saves    the experts that were kept; differentiable any number of times
/// Throws   Error unless 1 <= experts <= 1024 and capacity >= 0, and on wrong shapes or dtypes
/// Source   Fedus et al. 2021, arXiv:2101.03961, section 2.2; by probability: Riquelme et al. 2021,
///          arXiv:2106.05974, section 4.1
Routing limit_capacity(const Routing& routing, std::int64_t experts, std::int64_t capacity,
                       DropPolicy policy = DropPolicy::probability);

/// limit_capacity() with capacity ceil(slots / experts * factor), where only slots with an expert
/// count: padding takes no capacity and adds none. The count stays on the device; the host does not
/// wait.
///
/// Shapes, dtypes, device, saves   as limit_capacity
/// Throws   Error unless 1 <= experts <= 1024 and factor is in (0, 1e6], and on wrong shapes or
///          dtypes
/// Source   as limit_capacity
Routing limit_capacity_factor(const Routing& routing, std::int64_t experts, double factor,
                              DropPolicy policy = DropPolicy::probability);

}  // namespace weft
