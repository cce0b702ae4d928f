#pragma once
#include "weft/autograd/router.h"
#include "weft/core/kernels/expert_capacity.h"

namespace weft {

/// How many tokens an expert has room for: ceil(tokens * topk / experts * factor). With factor 1
/// and an even load nothing is dropped.
///
/// Throws   Error unless tokens >= 0, topk >= 1, experts >= 1 and factor > 0
/// Source   Fedus et al. 2021, arXiv:2101.03961, eq. 3
std::int64_t expert_capacity(std::int64_t tokens, std::int64_t experts, std::int64_t topk,
                             double factor);

/// Drops what experts have no room for: such a slot gets expert -1 and probability 0. The other
/// probabilities stay as they are; a token that is dropped everywhere goes on in the residual
/// stream only. At capacity >= T nothing is dropped.
///
/// Shapes   routing (T, k)  ->  (T, k)
/// Dtypes   as route gives them
/// Device   cpu, cuda, meta
/// Saves    the experts that were kept; can be differentiated any number of times
/// Throws   Error unless 1 <= experts <= 1024 and capacity >= 0, and on other shapes and dtypes
/// Source   Fedus et al. 2021, arXiv:2101.03961, section 2.2; by probability: Riquelme et al. 2021,
///          arXiv:2106.05974, section 4.1
Routing limit_capacity(const Routing& routing, std::int64_t experts, std::int64_t capacity,
                       DropPolicy policy = DropPolicy::probability);

/// limit_capacity() with the capacity of the slots that have an expert: ceil(slots / experts *
/// factor). Padding has none, so it neither takes room nor makes any. How much there is is known on
/// the device only: the host reads nothing.
///
/// Shapes, dtypes, device, saves   as limit_capacity
/// Throws   Error unless 1 <= experts <= 1024 and factor > 0, and on other shapes and dtypes
/// Source   as limit_capacity
Routing limit_capacity_factor(const Routing& routing, std::int64_t experts, double factor,
                              DropPolicy policy = DropPolicy::probability);

}  // namespace weft
