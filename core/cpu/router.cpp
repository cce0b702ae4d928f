#include "weft/core/kernels/router.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/core/cpu/router_rows.h"
#include "weft/core/parallel.h"

namespace weft::cpu {
namespace {

// a is chosen before b when both could be. NaN comes first, so that it shows in the loss.
template <class R>
bool before(R a, R b) {
  return a > b || (std::isnan(a) && !std::isnan(b));
}

// The best `room` of what it is offered, best first. Offers come in ascending order of their
// number, so the earlier one of two equals stays in front.
template <class R>
struct Best {
  std::int64_t room, held = 0;
  R value[kRouterTopk];
  std::int64_t number[kRouterTopk];

  void offer(R v, std::int64_t n) {
    if (held == room && !before(v, value[room - 1])) return;
    std::int64_t at = held < room ? held++ : room - 1;
    for (; at > 0 && before(v, value[at - 1]); --at) {
      value[at] = value[at - 1];
      number[at] = number[at - 1];
    }
    value[at] = v;
    number[at] = n;
  }
  // v[begin .. end): once full, whole blocks without a candidate are passed over.
  void offer_all(const R* v, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kBlock = 16;
    std::int64_t i = begin;
    for (; i < end && held < room; ++i) offer(v[i], i);
    for (; i + kBlock <= end; i += kBlock) {
      const R bar = value[room - 1];
      int candidates = 0;
      for (std::int64_t j = 0; j < kBlock; ++j) candidates |= !(v[i + j] <= bar);
      for (std::int64_t j = 0; candidates != 0 && j < kBlock; ++j) offer(v[i + j], i + j);
    }
    for (; i < end; ++i) offer(v[i], i);
  }
};

// The best experts of the best groups.
template <class R>
void choose(const R* rank, std::int64_t E, const RouterOptions& o, Best<R>& best) {
  if (o.groups == 0) return best.offer_all(rank, 0, E);
  const std::int64_t size = E / o.groups;
  // At most topk groups stay, and topk <= kRouterTopk.
  Best<R> groups{o.group_topk, 0, {}, {}};
  for (std::int64_t g = 0; g < o.groups; ++g) {
    Best<R> inside{o.topk / o.group_topk, 0, {}, {}};
    inside.offer_all(rank, g * size, (g + 1) * size);
    R sum = 0;
    for (std::int64_t i = 0; i < inside.held; ++i) sum += inside.value[i];
    groups.offer(sum, g);
  }
  std::sort(groups.number, groups.number + groups.held);
  for (std::int64_t i = 0; i < groups.held; ++i)
    best.offer_all(rank, groups.number[i] * size, (groups.number[i] + 1) * size);
}

// What experts are compared by: x itself where scores have the same order.
template <class R>
const R* ranking(const R* x, const float* bias, std::int64_t E, const RouterOptions& o, R* room) {
  const bool logits_do = o.groups == 0 || (o.score == RouterScore::softmax && !o.pre_softmax);
  if (!bias && logits_do) return x;
  if (o.score == RouterScore::softmax)
    RouterRows<R>::softmax(x, room, E);
  else
    RouterRows<R>::score(o.score, x, room, E);
  if (bias)
    for (std::int64_t e = 0; e < E; ++e) room[e] += static_cast<R>(bias[e]);
  return room;
}

// The probabilities of the k chosen experts, whose logits are v.
template <class R>
void probabilities(const R* x, std::int64_t E, const R* v, const RouterOptions& o, R* p) {
  const std::int64_t k = o.topk;
  const R scaling = static_cast<R>(o.scaling);
  if (o.score == RouterScore::softmax) {
    const R* over = o.pre_softmax ? x : v;
    const std::int64_t n = o.pre_softmax ? E : k;
    const R top = RouterRows<R>::max(over, n),
            factor = scaling / RouterRows<R>::sum_exp(over, top, n);
    for (std::int64_t i = 0; i < k; ++i) p[i] = std::exp(v[i] - top) * factor;
    return;
  }
  RouterRows<R>::score(o.score, v, p, k);
  R factor = scaling;
  if (router_normalises(o)) {
    R sum = 0;
    for (std::int64_t i = 0; i < k; ++i) sum += p[i];
    factor /= sum + static_cast<R>(kRouterEps);
  }
  for (std::int64_t i = 0; i < k; ++i) p[i] *= factor;
}

// dx of the k chosen logits v from g, the gradients of their unscaled probabilities; not for
// softmax over all experts.
template <class R>
void chosen_gradient(const R* v, R* g, const RouterOptions& o) {
  const std::int64_t k = o.topk;
  R y[kRouterTopk];
  R dot = 0;
  if (o.score == RouterScore::softmax) {
    RouterRows<R>::softmax(v, y, k);
    for (std::int64_t i = 0; i < k; ++i) dot += y[i] * g[i];
    for (std::int64_t i = 0; i < k; ++i) g[i] = y[i] * (g[i] - dot);
    return;
  }
  RouterRows<R>::score(o.score, v, y, k);
  R sum = 0;
  for (std::int64_t i = 0; i < k; ++i) {
    sum += y[i];
    dot += y[i] * g[i];
  }
  sum += static_cast<R>(kRouterEps);
  for (std::int64_t i = 0; i < k; ++i) {
    const R dy = router_normalises(o) ? (g[i] - dot / sum) / sum : g[i];
    g[i] = dy * router_slope(o.score, v[i], y[i]);
  }
}

constexpr std::int64_t kWork = 16;  // of an expert of a token

}  // namespace

void route_fwd(const Tensor& logits, const Tensor& select, const Tensor& bias,
               const Tensor& padding, const RouterOptions& o, const Tensor& probs,
               const Tensor& experts) {
  const std::int64_t E = logits.dim(1), k = o.topk;
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = RouterReal<T>;
    const T* px = logits.data<T>();
    const R* ps = select ? select.data<R>() : nullptr;
    const float* pb = bias ? bias.data<float>() : nullptr;
    const bool* pad = padding ? padding.data<bool>() : nullptr;
    R* pp = probs.data<R>();
    std::int64_t* pe = experts.data<std::int64_t>();
    parallel_for(logits.dim(0), kWork * E, [=, &o](std::int64_t begin, std::int64_t end) {
      alignas(64) R wide[kRouterExperts];
      alignas(64) R room[kRouterExperts];
      for (std::int64_t t = begin; t < end; ++t) {
        if (pad && pad[t]) {
          std::fill_n(pp + t * k, k, R(0));
          std::fill_n(pe + t * k, k, std::int64_t{-1});
          continue;
        }
        const R* x = RouterRows<R>::widened(px + t * E, wide, E);
        Best<R> best{k, 0, {}, {}};
        choose(ps ? ps + t * E : ranking(x, pb, E, o, room), E, o, best);
        R v[kRouterTopk];
        for (std::int64_t i = 0; i < k; ++i) {
          pe[t * k + i] = best.number[i];
          v[i] = x[best.number[i]];
        }
        probabilities(x, E, v, o, pp + t * k);
      }
    });
  });
}

void route_bwd(const Tensor& logits, const Tensor& experts, const Tensor& dprobs,
               const RouterOptions& o, const Tensor& dlogits) {
  const std::int64_t E = logits.dim(1), k = o.topk;
  dispatch_floating(logits.dtype(), [&]<class T>() {
    using R = RouterReal<T>;
    const T* px = logits.data<T>();
    const std::int64_t* pe = experts.data<std::int64_t>();
    const R* pdp = dprobs.data<R>();
    T* pdx = dlogits.data<T>();
    parallel_for(logits.dim(0), kWork * E, [=, &o](std::int64_t begin, std::int64_t end) {
      alignas(64) R wide[kRouterExperts];
      alignas(64) R s[kRouterExperts];
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t* chosen = pe + t * k;
        T* dx = pdx + t * E;
        std::fill_n(dx, E, T(0));
        if (chosen[0] < 0) continue;
        const R* x = RouterRows<R>::widened(px + t * E, wide, E);
        R v[kRouterTopk], g[kRouterTopk];
        for (std::int64_t i = 0; i < k; ++i) {
          v[i] = x[chosen[i]];
          g[i] = pdp[t * k + i] * static_cast<R>(o.scaling);
        }
        if (o.pre_softmax) {
          RouterRows<R>::softmax(x, s, E);
          R dot = 0;
          for (std::int64_t i = 0; i < k; ++i) dot += s[chosen[i]] * g[i];
          for (std::int64_t e = 0; e < E; ++e) dx[e] = T(-s[e] * dot);
          for (std::int64_t i = 0; i < k; ++i) dx[chosen[i]] = T(s[chosen[i]] * (g[i] - dot));
        } else {
          chosen_gradient(v, g, o);
          for (std::int64_t i = 0; i < k; ++i) dx[chosen[i]] = T(g[i]);
        }
      }
    });
  });
}

}  // namespace weft::cpu
