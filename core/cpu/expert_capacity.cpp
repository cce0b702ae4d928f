#include "weft/core/kernels/expert_capacity.h"

#include <algorithm>
#include <cmath>

#include "weft/core/parallel.h"

namespace weft::cpu {

void limit_capacity(const LimitCapacityIn& in, const LimitCapacityOut& out) {
  const std::int64_t slots = in.experts.numel(), count = in.count;
  const std::int64_t* chosen = in.experts.data<std::int64_t>();
  std::int64_t* kept = out.experts.data<std::int64_t>();
  // The slots of each expert e, in order, starting at start[e].
  std::int64_t* bucket = out.scratch.data<std::int64_t>();
  std::int64_t* start = bucket + slots;
  const auto has_expert = [=](std::int64_t s) { return chosen[s] >= 0 && chosen[s] < count; };
  std::fill_n(start, count + 1, std::int64_t{0});
  for (std::int64_t s = 0; s < slots; ++s)
    if (has_expert(s)) ++start[chosen[s] + 1];
  for (std::int64_t e = 0; e < count; ++e) start[e + 1] += start[e];
  const std::int64_t capacity =
      in.factor > 0 ? capacity_per_expert(start[count], count, in.factor) : in.capacity;
  for (std::int64_t s = 0; s < slots; ++s)
    if (has_expert(s)) bucket[start[chosen[s]]++] = s;
  for (std::int64_t e = count; e > 0; --e) start[e] = start[e - 1];
  start[0] = 0;

  const DropPolicy policy = in.policy;
  dispatch_floating(in.probs.dtype(), [&]<class T>() {
    const T* p = in.probs.data<T>();
    T* kept_p = out.probs.data<T>();
    std::fill_n(kept, slots, std::int64_t{-1});
    std::fill_n(kept_p, slots, T(0));
    const auto before = [p](std::int64_t a, std::int64_t b) {
      if (p[a] != p[b] && !(std::isnan(p[a]) && std::isnan(p[b])))
        return p[a] > p[b] || (std::isnan(p[a]) && !std::isnan(p[b]));
      return a < b;
    };
    const std::int64_t work = 8 * (slots / count + 1);
    parallel_for(count, work, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t e = begin; e < end; ++e) {
        std::int64_t *first = bucket + start[e], *last = bucket + start[e + 1];
        const std::int64_t room = std::min(capacity, last - first);
        if (policy == DropPolicy::probability && room < last - first)
          std::nth_element(first, first + room, last, before);
        for (std::int64_t i = 0; i < room; ++i) {
          kept[first[i]] = e;
          kept_p[first[i]] = p[first[i]];
        }
      }
    });
  });
}

}  // namespace weft::cpu
