#pragma once
// Chooses the experts of tokens: sixteen tokens side by side in f32; one by one in f64, for groups
// under a softmax over all experts, and where a logit is not finite. Both ways choose the same
// experts.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "weft/core/cpu/router_rows.h"

namespace weft::cpu {

/// The rows of a block of tokens, and the values that replace their logits in the comparison.
template <class T>
struct RouterBlock {
  using R = Real<T>;
  std::int64_t tokens, E;
  const T* logits;
  const R* select;    // (tokens, E), or null
  const float* bias;  // (E), or null
};

// Whether a is chosen before b. NaN comes first, so that it shows in the loss.
template <class R>
inline bool before(R a, R b) {
  return a > b || (std::isnan(a) && !std::isnan(b));
}

// Keeps the best `room` of the offered candidates, best first. Offers come in ascending order of
// their number, so the earlier of two equals stays first.
template <class R>
struct Best {
  explicit Best(std::int64_t n) : room(n) {}
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
  // Offers v[begin .. end). Once full, skips whole blocks without a candidate.
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

// The indices of the k best experts, best first; from the best groups, if there are groups.
template <class R>
void choose(const R* rank, std::int64_t E, const RouterOptions& o, std::int64_t* chosen) {
  Best<R> best(o.topk);
  if (o.groups == 0) {
    best.offer_all(rank, 0, E);
  } else {
    const std::int64_t size = E / o.groups;
    Best<R> groups(o.group_topk);
    for (std::int64_t g = 0; g < o.groups; ++g) {
      Best<R> inside(router_group_best(o));
      inside.offer_all(rank, g * size, (g + 1) * size);
      R sum = 0;
      for (std::int64_t i = 0; i < inside.held; ++i) sum += inside.value[i];
      groups.offer(sum, g);
    }
    std::sort(groups.number, groups.number + groups.held);
    for (std::int64_t i = 0; i < groups.held; ++i)
      best.offer_all(rank, groups.number[i] * size, (groups.number[i] + 1) * size);
  }
  std::copy_n(best.number, o.topk, chosen);
}

// The values by which experts are compared: x itself where scores preserve its order.
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

// The largest values of each token so far, one token per column.
struct BestOfColumns {
  std::int64_t room;
  alignas(64) float values[kRouterTopk * kTokenLanes], places[kRouterTopk * kTokenLanes];

  explicit BestOfColumns(std::int64_t n) : room(n) {
    std::fill_n(values, n * kTokenLanes, kTopFloor);
    std::fill_n(places, n * kTokenLanes, 0.0f);  // a value not above kTopFloor never enters
  }
  bool offer(const float* columns, std::int64_t n, std::int64_t first = 0) {
    return simd().top_of_columns(columns, n, first, room, values, places);
  }
};

// Fills the columns (E, 16) of experts outside the best groups with kTopFloor. Returns false when a
// token has too few groups above it.
inline bool keep_best_groups(float* columns, std::int64_t E, std::int64_t tokens,
                             const RouterOptions& o) {
  constexpr std::int64_t L = kTokenLanes;
  const std::int64_t size = E / o.groups;
  alignas(64) float sums[kRouterExperts * L], kept[kRouterExperts * L];
  for (std::int64_t g = 0; g < o.groups; ++g) {
    BestOfColumns inside(router_group_best(o));
    if (!inside.offer(columns + g * size * L, size)) return false;
    std::fill_n(sums + g * L, L, 0.0f);
    for (std::int64_t i = 0; i < inside.room; ++i)
      for (std::int64_t t = 0; t < L; ++t) sums[g * L + t] += inside.values[i * L + t];
  }
  BestOfColumns groups(o.group_topk);
  if (!groups.offer(sums, o.groups)) return false;
  for (std::int64_t t = 0; t < tokens; ++t)
    if (!(groups.values[(o.group_topk - 1) * L + t] > kTopFloor)) return false;
  std::fill_n(kept, o.groups * L, 0.0f);
  for (std::int64_t i = 0; i < o.group_topk; ++i)
    for (std::int64_t t = 0; t < L; ++t)
      kept[static_cast<std::int64_t>(groups.places[i * L + t]) * L + t] = 1;
  for (std::int64_t e = 0; e < E; ++e)
    for (std::int64_t t = 0; t < L; ++t)
      columns[e * L + t] = kept[e / size * L + t] > 0 ? columns[e * L + t] : kTopFloor;
  return true;
}

// Chooses the experts of a block. Returns false when the tokens must be processed one by one.
template <class T>
bool choose_side_by_side(const RouterBlock<T>& block, const RouterOptions& o,
                         std::int64_t* chosen) {
  constexpr std::int64_t L = kTokenLanes;
  const std::int64_t tokens = block.tokens, E = block.E, k = o.topk;
  if (o.groups > 0 && o.pre_softmax) return false;
  const bool scores = block.bias || (o.groups > 0 && o.score != RouterScore::softmax);
  // Groups are compared before experts and need all experts; otherwise a part of them at a time
  // suffices.
  const std::int64_t part = o.groups > 0 ? E : kColumns;
  alignas(64) float columns[kRouterExperts * L];
  BestOfColumns best(k);
  for (std::int64_t first = 0; first < E; first += part) {
    const std::int64_t n = std::min(part, E - first);
    if (block.select)
      load_columns(block.select, E, tokens, first, n, columns);
    else
      load_columns(block.logits, E, tokens, first, n, columns);
    if (scores) RouterRows<float>::score(o.score, columns, columns, n * L);
    for (std::int64_t e = 0; block.bias && e < n; ++e)
      for (std::int64_t t = 0; t < L; ++t) columns[e * L + t] += block.bias[first + e];
    if (o.groups > 0 && !keep_best_groups(columns, E, tokens, o)) return false;
    if (!best.offer(columns, n, first)) return false;
  }
  for (std::int64_t t = 0; t < tokens; ++t)
    if (!(best.values[(k - 1) * L + t] > kTopFloor)) return false;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t j = 0; j < k; ++j)
      chosen[t * k + j] = static_cast<std::int64_t>(best.places[j * L + t]);
  return true;
}

/// chosen (tokens, k) = the indices of the best experts of each token, best first.
template <class T>
void choose_experts(const RouterBlock<T>& block, const RouterOptions& o, std::int64_t* chosen) {
  using R = Real<T>;
  if constexpr (std::is_same_v<R, float>)
    if (choose_side_by_side(block, o, chosen)) return;
  alignas(64) R wide[kRouterExperts], room[kRouterExperts];
  for (std::int64_t t = 0; t < block.tokens; ++t) {
    const R* rank = block.select
                        ? block.select + t * block.E
                        : ranking(RouterRows<R>::widened(block.logits + t * block.E, wide, block.E),
                                  block.bias, block.E, o, room);
    choose(rank, block.E, o, chosen + t * o.topk);
  }
}

}  // namespace weft::cpu
