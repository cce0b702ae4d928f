#include "weft/core/kernels/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/core/cpu/router_choice.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// p (k, 16) = the probabilities of the chosen experts of a block of tokens, from their logits v (k,
// 16); one token per column.
template <class T, class R>
void probabilities(const RouterBlock<T>& block, const R* v, const RouterOptions& o, R* p) {
  constexpr std::int64_t L = kTokenLanes;
  const std::int64_t k = o.topk;
  R factor[L];
  if (o.score == RouterScore::softmax) {
    // Without a softmax over all experts, the first of the chosen logits is the largest.
    R top[L];
    std::copy_n(v, L, top);
    alignas(64) R wide[kRouterExperts];
    for (std::int64_t t = 0; o.pre_softmax && t < block.tokens; ++t) {
      const R* x = RouterRows<R>::widened(block.logits + t * block.E, wide, block.E);
      top[t] = RouterRows<R>::max(x, block.E);
      factor[t] = RouterRows<R>::sum_exp(x, top[t], block.E);
    }
    for (std::int64_t i = 0; i < k; ++i)
      for (std::int64_t t = 0; t < L; ++t) p[i * L + t] = v[i * L + t] - top[t];
    RouterRows<R>::exp(p, p, k * L);
  } else {
    RouterRows<R>::score(o.score, v, p, k * L);
  }
  if (!o.pre_softmax) {
    const bool divides = o.score == RouterScore::softmax || router_normalises(o);
    std::fill_n(factor, L, divides ? R(0) : R(1));
    for (std::int64_t i = 0; divides && i < k; ++i)
      for (std::int64_t t = 0; t < L; ++t) factor[t] += p[i * L + t];
    for (std::int64_t t = 0; router_normalises(o) && t < L; ++t)
      factor[t] += static_cast<R>(kRouterEps);
  }
  for (std::int64_t t = 0; t < block.tokens; ++t) factor[t] = static_cast<R>(o.scaling) / factor[t];
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t t = 0; t < block.tokens; ++t) p[i * L + t] *= factor[t];
}

// Converts the gradients g (k, 16) of the unscaled probabilities of a block of tokens to those of
// the chosen logits v (k, 16); not for a softmax over all experts.
template <class R>
void chosen_gradients(const R* v, R* g, const RouterOptions& o) {
  constexpr std::int64_t L = kTokenLanes;
  const std::int64_t k = o.topk;
  const bool softmax = o.score == RouterScore::softmax;
  alignas(64) R y[kRouterTopk * L], s[kRouterTopk * L];
  R sum[L] = {}, dot[L] = {};
  if (softmax) {
    for (std::int64_t i = 0; i < k * L; ++i) y[i] = v[i] - v[i % L];  // the first is the largest
    RouterRows<R>::exp(y, y, k * L);
  } else {
    RouterRows<R>::score(o.score, v, y, k * L);
  }
  for (std::int64_t i = 0; i < k; ++i)
    for (std::int64_t t = 0; t < L; ++t) {
      sum[t] += y[i * L + t];
      dot[t] += y[i * L + t] * g[i * L + t];
    }
  if (softmax || router_normalises(o))
    for (std::int64_t t = 0; t < L; ++t) {
      sum[t] += softmax ? R(0) : static_cast<R>(kRouterEps);
      for (std::int64_t i = 0; i < k; ++i) g[i * L + t] = (g[i * L + t] - dot[t] / sum[t]) / sum[t];
    }
  if (softmax) {
    for (std::int64_t i = 0; i < k * L; ++i) g[i] *= y[i];
    return;
  }
  // The derivative of a sigmoid is y sigmoid(-v), that of sqrt(softplus) is sigmoid(v) / (2 y).
  const bool sigmoid = o.score == RouterScore::sigmoid;
  for (std::int64_t i = 0; i < k * L; ++i) s[i] = sigmoid ? -v[i] : v[i];
  RouterRows<R>::score(RouterScore::sigmoid, s, s, k * L);
  for (std::int64_t i = 0; i < k * L; ++i)
    g[i] *= sigmoid ? y[i] * s[i] : v[i] < R(kRouterLow) ? y[i] / 2 : s[i] / (2 * y[i]);
}

// The gradient of one token's logits through a softmax over all experts.
template <class T, class R>
void all_gradients(const RouterBlock<T>& block, std::int64_t t, const std::int64_t* chosen,
                   const R* g, std::int64_t k, T* dx) {
  alignas(64) R wide[kRouterExperts], s[kRouterExperts];
  RouterRows<R>::softmax(RouterRows<R>::widened(block.logits + t * block.E, wide, block.E), s,
                         block.E);
  R dot = 0;
  for (std::int64_t i = 0; i < k; ++i) dot += s[chosen[i]] * g[i * kTokenLanes + t];
  for (std::int64_t e = 0; e < block.E; ++e) dx[e] = T(-s[e] * dot);
  for (std::int64_t i = 0; i < k; ++i)
    dx[chosen[i]] = T(s[chosen[i]] * (g[i * kTokenLanes + t] - dot));
}

constexpr std::int64_t kWork = 16;  // per expert of a token

}  // namespace

void route_fwd(const Tensor& logits, const Tensor& select, const Tensor& bias,
               const Tensor& padding, const RouterOptions& o, const Tensor& probs,
               const Tensor& experts) {
  const std::int64_t E = logits.dim(1), k = o.topk;
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* px = logits.data<T>();
    const R* ps = data_or_null<R>(select);
    const float* pb = data_or_null<float>(bias);
    const bool* pad = data_or_null<bool>(padding);
    R* pp = probs.data<R>();
    std::int64_t* pe = experts.data<std::int64_t>();
    constexpr std::int64_t L = kTokenLanes;
    const std::int64_t tokens = logits.dim(0), blocks = (tokens + L - 1) / L;
    parallel_for(blocks, L * kWork * E, [=, &o](std::int64_t begin, std::int64_t end) {
      for (std::int64_t first = begin * L; first < std::min(end * L, tokens); first += L) {
        const RouterBlock<T> block{std::min(L, tokens - first), E, px + first * E,
                                   ps ? ps + first * E : nullptr, pb};
        std::int64_t* chosen = pe + first * k;
        choose_experts(block, o, chosen);
        alignas(64) R v[kRouterTopk * L], p[kRouterTopk * L];
        std::fill_n(v, k * L, R(0));
        for (std::int64_t t = 0; t < block.tokens; ++t)
          for (std::int64_t i = 0; i < k; ++i)
            v[i * L + t] = static_cast<R>(block.logits[t * E + chosen[t * k + i]]);
        probabilities(block, v, o, p);
        for (std::int64_t t = 0; t < block.tokens; ++t) {
          const bool padded = pad && pad[first + t];
          for (std::int64_t i = 0; i < k; ++i)
            pp[(first + t) * k + i] = padded ? R(0) : p[i * L + t];
          if (padded) std::fill_n(chosen + t * k, k, std::int64_t{-1});
        }
      }
    });
  });
}

void route_bwd(const Tensor& logits, const Tensor& experts, const Tensor& dprobs,
               const RouterOptions& o, const Tensor& dlogits) {
  const std::int64_t E = logits.dim(1), k = o.topk;
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = Real<T>;
    const T* px = logits.data<T>();
    const std::int64_t* pe = experts.data<std::int64_t>();
    const R* pdp = dprobs.data<R>();
    T* pdx = dlogits.data<T>();
    constexpr std::int64_t L = kTokenLanes;
    const std::int64_t tokens = logits.dim(0), blocks = (tokens + L - 1) / L;
    parallel_for(blocks, L * kWork * E, [=, &o](std::int64_t begin, std::int64_t end) {
      for (std::int64_t first = begin * L; first < std::min(end * L, tokens); first += L) {
        const RouterBlock<T> block{std::min(L, tokens - first), E, px + first * E, nullptr,
                                   nullptr};
        alignas(64) R v[kRouterTopk * L] = {}, g[kRouterTopk * L] = {};
        for (std::int64_t t = 0; t < block.tokens; ++t)
          for (std::int64_t i = 0; i < k; ++i) {
            const std::int64_t slot = (first + t) * k + i;
            if (pe[slot] < 0) continue;
            v[i * L + t] = static_cast<R>(block.logits[t * E + pe[slot]]);
            g[i * L + t] = pdp[slot] * static_cast<R>(o.scaling);
          }
        if (!o.pre_softmax) chosen_gradients(v, g, o);
        for (std::int64_t t = 0; t < block.tokens; ++t) {
          const std::int64_t* chosen = pe + (first + t) * k;
          T* dx = pdx + (first + t) * E;
          std::fill_n(dx, E, T(0));
          if (chosen[0] < 0) continue;
          if (o.pre_softmax)
            all_gradients(block, t, chosen, g, k, dx);
          else
            for (std::int64_t i = 0; i < k; ++i) dx[chosen[i]] = T(g[i * L + t]);
        }
      }
    });
  });
}

}  // namespace weft::cpu
