#include "weft/nn/part.h"

#include "weft/core/error.h"

namespace weft::nn {
namespace {

using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

// The ranges of every axis: all of it where nothing is cut.
std::vector<Ranges> ranges_by_axis(const Part& part) {
  std::vector<Ranges> out;
  for (int axis = 0; axis < part.whole.size(); ++axis) out.push_back({{0, part.whole[axis]}});
  for (const Part::Cut& cut : part.cuts) {
    check(cut.axis >= 0 && cut.axis < part.whole.size(),
          "part: a cut must be along an axis of {}, got axis {}", part.whole, cut.axis);
    std::int64_t last = 0;
    for (const auto& [begin, end] : cut.ranges) {
      check(last <= begin && begin <= end && end <= part.whole[cut.axis],
            "part: the ranges of axis {} of {} must ascend inside it, got [{}, {}) behind {}",
            cut.axis, part.whole, begin, end, last);
      last = end;
    }
    out[static_cast<std::size_t>(cut.axis)] = cut.ranges;
  }
  return out;
}

std::int64_t length(const Ranges& ranges) {
  std::int64_t n = 0;
  for (const auto& [begin, end] : ranges) n += end - begin;
  return n;
}

}  // namespace

Shape shape_of(const Part& part) {
  const std::vector<Ranges> axes = ranges_by_axis(part);
  Shape shape = part.whole;
  for (int axis = 0; axis < shape.size(); ++axis)
    shape[axis] = length(axes[static_cast<std::size_t>(axis)]);
  return shape;
}

void for_each_run(
    const Part& part,
    const std::function<void(std::int64_t whole, std::int64_t own, std::int64_t count)>& run) {
  const std::vector<Ranges> axes = ranges_by_axis(part);
  // Behind the last axis that is cut everything lies together.
  int last = part.whole.size() - 1;
  const auto uncut = [&](int axis) {
    const Ranges& r = axes[static_cast<std::size_t>(axis)];
    return r.size() == 1 && r[0].second - r[0].first == part.whole[axis];
  };
  std::int64_t together = 1;
  while (last >= 0 && uncut(last)) together *= part.whole[last--];
  if (last < 0) {
    if (together > 0) run(0, 0, together);
    return;
  }
  std::int64_t own = 0;
  const auto visit = [&](const auto& self, int axis, std::int64_t index) -> void {
    for (const auto& [begin, end] : axes[static_cast<std::size_t>(axis)]) {
      if (axis == last) {
        const std::int64_t count = (end - begin) * together;
        if (count > 0) run((index * part.whole[axis] + begin) * together, own, count);
        own += count;
      } else {
        for (std::int64_t i = begin; i < end; ++i)
          self(self, axis + 1, index * part.whole[axis] + i);
      }
    }
  };
  visit(visit, 0, 0);
}

}  // namespace weft::nn
