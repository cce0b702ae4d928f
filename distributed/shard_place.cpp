#include "weft/distributed/shard_place.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft::distributed {

ShardPlace place_of(const nn::ShardSpec& part, const std::string& parameter) {
  check(!part.cuts.empty(), "shard_place: {} must be cut, got the whole parameter", parameter);
  const auto last = std::max_element(part.cuts.begin(), part.cuts.end(),
                                     [](const auto& a, const auto& b) { return a.axis < b.axis; });
  std::int64_t inner = 1, skipped = 0;
  for (int axis = last->axis + 1; axis < part.whole.size(); ++axis) inner *= part.whole[axis];
  ShardPlace place;
  place.whole_period = part.whole[last->axis] * inner;
  // A cut of axis 0 leaves out whole periods.
  for (const nn::ShardSpec::Cut& cut : part.cuts) {
    if (&cut == &*last) continue;
    check(cut.axis == 0 && cut.ranges.size() == 1,
          "shard_place: the first of two cuts of {} must be one range of axis 0, got {} of axis {}",
          parameter, cut.ranges.size(), cut.axis);
    skipped = cut.ranges[0].first * place.whole_period;
    for (int axis = 1; axis < last->axis; ++axis) skipped *= part.whole[axis];
  }
  int run = 0;
  for (const auto& [begin, end] : last->ranges) {
    if (begin == end) continue;
    check(run < ShardPlace::kMostRuns, "shard_place: {} must be cut into at most {} ranges, got {}",
          parameter, ShardPlace::kMostRuns, last->ranges.size());
    place.offsets[run] = begin * inner - place.period + skipped;
    place.ends[run++] = place.period += (end - begin) * inner;
  }
  return place;
}

}  // namespace weft::distributed
