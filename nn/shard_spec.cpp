#include "weft/nn/shard_spec.h"

#include <algorithm>
#include <cstddef>

#include "weft/core/error.h"

namespace weft::nn {
namespace {

using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

// The non-empty ranges of every axis; the whole axis where there is no cut.
std::vector<Ranges> ranges_by_axis(const ShardSpec& part) {
  std::vector<Ranges> out;
  for (int axis = 0; axis < part.whole.size(); ++axis) out.push_back({{0, part.whole[axis]}});
  int seen = 0;  // a bit for each axis
  for (const ShardSpec::Cut& cut : part.cuts) {
    check(cut.axis >= 0 && cut.axis < part.whole.size(),
          "shard_spec: a cut must be along an axis of {}, got axis {}", part.whole, cut.axis);
    check((seen >> cut.axis & 1) == 0,
          "shard_spec: an axis must be cut once, got two cuts of axis {}", cut.axis);
    seen |= 1 << cut.axis;
    Ranges& kept = out[static_cast<std::size_t>(cut.axis)];
    kept.clear();
    std::int64_t last = 0;
    for (const auto& [begin, end] : cut.ranges) {
      check(last <= begin && begin <= end && end <= part.whole[cut.axis],
            "shard_spec: the ranges of axis {} of {} must ascend inside it, got [{}, {}) after {}",
            cut.axis, part.whole, begin, end, last);
      last = end;
      if (begin < end) kept.emplace_back(begin, end);
    }
  }
  return out;
}

std::int64_t length(const Ranges& ranges) {
  std::int64_t n = 0;
  for (const auto& [begin, end] : ranges) n += end - begin;
  return n;
}

// Visits the non-empty runs among elements [begin, end) of the part.
struct Walk {
  const ShardSpec& part;
  const std::vector<Ranges>& axes;
  std::vector<std::int64_t> inner;  // by axis: number of the part's elements per index of the axis
  int last;                         // last axis that is cut; later axes are contiguous
  std::int64_t begin, end;
  const Run& run;

  // `index`: flat index over the whole's preceding axes; `own`: the part's elements before it.
  void visit(int axis, std::int64_t index, std::int64_t own) const {
    const std::int64_t step = inner[static_cast<std::size_t>(axis)];
    for (const auto& [first, behind] : axes[static_cast<std::size_t>(axis)]) {
      if (own >= end) return;
      const std::int64_t next = own + (behind - first) * step;
      if (next > begin) {
        const std::int64_t at = index * part.whole[axis];
        if (axis == last) {
          const std::int64_t low = std::max(own, begin), high = std::min(next, end);
          run((at + first) * step + low - own, low, high - low);
        } else {
          for (std::int64_t i = std::max<std::int64_t>(begin - own, 0) / step;
               i < behind - first && own + i * step < end; ++i)
            visit(axis + 1, at + first + i, own + i * step);
        }
      }
      own = next;
    }
  }
};

}  // namespace

Shape shape_of(const ShardSpec& part) {
  const std::vector<Ranges> axes = ranges_by_axis(part);
  Shape shape = part.whole;
  for (int axis = 0; axis < shape.size(); ++axis)
    shape[axis] = length(axes[static_cast<std::size_t>(axis)]);
  return shape;
}

void for_each_run(const ShardSpec& part, const Run& run) {
  for_each_run(part, 0, shape_of(part).numel(), run);
}

void for_each_run(const ShardSpec& part, std::int64_t begin, std::int64_t end, const Run& run) {
  const std::vector<Ranges> axes = ranges_by_axis(part);
  const Shape own = shape_of(part);
  const std::int64_t elements = own.numel();
  check(0 <= begin && begin <= end && end <= elements,
        "shard_spec: [{}, {}) must lie among the {} elements of the shard", begin, end, elements);
  if (begin == end) return;
  int last = part.whole.size() - 1;
  while (last >= 0 && own[last] == part.whole[last]) --last;
  if (last < 0) return run(begin, begin, end - begin);
  std::vector<std::int64_t> inner(static_cast<std::size_t>(own.size()), 1);
  for (int axis = own.size() - 2; axis >= 0; --axis)
    inner[static_cast<std::size_t>(axis)] =
        inner[static_cast<std::size_t>(axis) + 1] * own[axis + 1];
  Walk{part, axes, std::move(inner), last, begin, end, run}.visit(0, 0, 0);
}

}  // namespace weft::nn
