#include "weft/distributed/axis_placement.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/distributed/placement_steps.h"

namespace weft::distributed {
namespace {

std::string mesh_text(const MeshAxes& axes) {
  std::string s;
  for (const ProcessGroup* g : axes)
    s += (s.empty() ? "" : ", ") + message("{}={}", g->name(), g->size());
  return "mesh(" + s + ")";
}

}  // namespace

std::string AxisPlacement::text() const {
  if (kind_ == Kind::replicate) return "R";
  if (kind_ == Kind::shard) return message("S({})", dim_);
  constexpr const char* kNames[] = {"sum", "avg", "max", "min"};
  return message("P({})", kNames[static_cast<int>(op_)]);
}

std::string text_of(const Placements& placements) {
  std::string s;
  for (const AxisPlacement& p : placements) s += (s.empty() ? "" : ", ") + p.text();
  return s;
}

std::string describe(DType dtype, const Shape& whole, const Placements& placements,
                     const MeshAxes& axes) {
  return message("{}{}({}) on {}", dtype, whole, text_of(placements), mesh_text(axes));
}

bool reduces_in_any_order(const Placements& placements) {
  const auto family = [](const AxisPlacement& p) {
    return p.op() == AxisPlacement::Op::avg ? AxisPlacement::Op::sum : p.op();
  };
  const AxisPlacement* first = nullptr;
  for (const AxisPlacement& p : placements) {
    if (!p.is_partial()) continue;
    if (first && family(*first) != family(p)) return false;
    first = &p;
  }
  return true;
}

void check_placements(const char* op, const Shape& whole, const Placements& placements,
                      const MeshAxes& axes) {
  check(placements.size() == axes.size(), "{}: {} must have one placement for each axis, got ({})",
        op, mesh_text(axes), text_of(placements));
  for (const AxisPlacement& p : placements)
    check(!p.is_shard() || (p.dim() >= 0 && p.dim() < whole.size()),
          "{}: {} must name an axis of {}, got ({}) on {}", op, p.text(), whole,
          text_of(placements), mesh_text(axes));
  check(reduces_in_any_order(placements),
        "{}: the partials must be sums and averages, or maxima, or minima, got ({}) on {}", op,
        text_of(placements), mesh_text(axes));
}

std::pair<std::int64_t, std::int64_t> chunk_of(std::int64_t begin, std::int64_t end, int rank,
                                               int ranks) {
  const std::int64_t most = (end - begin + ranks - 1) / ranks;
  const std::int64_t first = std::min(end, begin + rank * most);
  return {first, std::min(end, first + most)};
}

nn::ShardSpec shard_spec(const Shape& whole, const Placements& placements, const MeshAxes& axes) {
  check_placements("shard_spec", whole, placements, axes);
  nn::ShardSpec spec{.whole = whole, .cuts = {}};
  for (int dim = 0; dim < whole.size(); ++dim) {
    std::pair<std::int64_t, std::int64_t> range{0, whole[dim]};
    bool cut = false;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if (!placements[i].is_shard(dim)) continue;
      range = chunk_of(range.first, range.second, axes[i]->rank(), axes[i]->size());
      cut = true;
    }
    if (cut) spec.cuts.push_back({.axis = dim, .ranges = {range}});
  }
  return spec;
}

}  // namespace weft::distributed
