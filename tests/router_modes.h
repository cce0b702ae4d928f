#pragma once
#include "weft/autograd/router.h"

namespace weft::test {

inline const RouterOptions kRouterModes[] = {
    {.topk = 2},
    {.topk = 1, .pre_softmax = true},
    {.topk = 4, .pre_softmax = true, .scaling = 2.5},
    {.topk = 1, .score = RouterScore::sigmoid},
    {.topk = 3, .score = RouterScore::sigmoid, .scaling = 2.5},
    {.topk = 3, .score = RouterScore::sqrt_softplus},
    {.topk = 1, .score = RouterScore::sqrt_softplus, .scaling = 0.5},
    {.topk = 4, .groups = 4, .group_topk = 2},
    {.topk = 4, .pre_softmax = true, .groups = 4, .group_topk = 2},
    {.topk = 4, .score = RouterScore::sigmoid, .groups = 4, .group_topk = 2},
    {.topk = 3, .score = RouterScore::sqrt_softplus, .groups = 2, .group_topk = 1},
    {.topk = 3, .score = RouterScore::sigmoid, .normalise = false, .scaling = 2.5},
    {.topk = 3, .score = RouterScore::sigmoid, .groups = 4, .group_topk = 2, .group_best = 2},
    {.topk = 1, .score = RouterScore::sigmoid, .groups = 4, .group_topk = 2, .group_best = 2},
};

inline bool takes_bias(const RouterOptions& o) { return o.score != RouterScore::softmax; }

}  // namespace weft::test
