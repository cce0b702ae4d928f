#include "weft/distributed/placement_steps.h"

#include <algorithm>

namespace weft::distributed {
namespace {

// Writing the neutral element costs more than nothing, so that no plan makes partials on its way.
constexpr double kToPartialUs = 1;

// A placement of every axis, and the best way to it.
struct Reached {
  Placements placements;
  std::vector<PlacementStep> steps;
  double us = 0;
  bool done = false;
};

class Search {
 public:
  Search(const Shape& whole, DType dtype, const MeshAxes& axes, const Cluster& cluster)
      : whole_(whole), dtype_(dtype), axes_(axes), cluster_(cluster) {}

  PlacementSteps run(const Placements& from, const Placements& to) {
    std::vector<Reached> states{{.placements = from, .steps = {}}};
    for (;;) {
      std::size_t best = states.size();
      for (std::size_t i = 0; i < states.size(); ++i)
        if (!states[i].done && (best == states.size() || before(states[i], states[best]))) best = i;
      states[best].done = true;
      const Reached state = states[best];
      if (state.placements == to) return {state.steps, state.us};
      for (std::size_t axis = 0; axis < axes_.size(); ++axis)
        for (const AxisPlacement& p : choices(from, to, axis))
          if (allowed(state.placements, axis, p)) reach(states, state, axis, p);
    }
  }

 private:
  static bool before(const Reached& a, const Reached& b) {
    return a.us != b.us ? a.us < b.us : a.steps.size() < b.steps.size();
  }

  static Placements choices(const Placements& from, const Placements& to, std::size_t axis) {
    Placements list{to[axis]};
    const auto add = [&list](const AxisPlacement& p) {
      if (std::find(list.begin(), list.end(), p) == list.end()) list.push_back(p);
    };
    add(AxisPlacement::replicate());
    for (const Placements* const all : {&from, &to})
      for (const AxisPlacement& p : *all)
        if (p.is_shard()) add(p);
    return list;
  }

  // Only the innermost cut of a dim can be made or undone: an outer one would interleave rows.
  static bool cut_inside(const Placements& now, std::size_t axis, const AxisPlacement& p) {
    return p.is_shard() && std::find(now.begin() + static_cast<std::ptrdiff_t>(axis) + 1, now.end(),
                                     p) != now.end();
  }

  static bool allowed(const Placements& now, std::size_t axis, const AxisPlacement& to) {
    const AxisPlacement& from = now[axis];
    if (from == to || cut_inside(now, axis, from) || cut_inside(now, axis, to)) return false;
    if (!to.is_partial()) return true;
    Placements next = now;
    next[axis] = to;
    return from.is_replicate() && reduces_in_any_order(next);
  }

  void reach(std::vector<Reached>& states, const Reached& state, std::size_t axis,
             const AxisPlacement& p) const {
    Reached next = state;
    next.done = false;
    next.us += step_us(state.placements, axis, p);
    next.placements[axis] = p;
    next.steps.push_back({axis, p});
    const auto known = std::find_if(states.begin(), states.end(), [&](const Reached& s) {
      return s.placements == next.placements;
    });
    if (known == states.end()) {
      states.push_back(std::move(next));
    } else if (!known->done && before(next, *known)) {
      *known = std::move(next);
    }
  }

  double step_us(const Placements& now, std::size_t axis, const AxisPlacement& to) const {
    const AxisPlacement& from = now[axis];
    if (from.is_replicate()) return to.is_partial() ? kToPartialUs : 0;
    const Collective kind =
        from.is_partial()
            ? (to.is_replicate() ? Collective::all_reduce : Collective::reduce_scatter)
            : (to.is_replicate() ? Collective::all_gather : Collective::all_to_all);
    Placements whole = now;  // along this axis: what an all_gather has afterwards
    if (kind == Collective::all_gather) whole[axis] = to;
    return collective_us(cluster_, kind, bytes(whole), ranks(axis));
  }

  // Of the largest part, which rank 0 has, so that every rank finds the same plan.
  std::int64_t bytes(const Placements& placements) const {
    std::int64_t count = static_cast<std::int64_t>(size_of(dtype_));
    for (int dim = 0; dim < whole_.size(); ++dim) {
      std::int64_t length = whole_[dim];
      for (std::size_t i = 0; i < axes_.size(); ++i)
        if (placements[i].is_shard(dim)) length = chunk_of(0, length, 0, axes_[i]->size()).second;
      count *= length;
    }
    return count;
  }

  // As if the mesh began at rank 0 with the last axis varying fastest: equal on all ranks.
  std::vector<int> ranks(std::size_t axis) const {
    int stride = 1;
    for (std::size_t i = axis + 1; i < axes_.size(); ++i) stride *= axes_[i]->size();
    std::vector<int> list;
    for (int r = 0; r < axes_[axis]->size(); ++r) list.push_back(r * stride);
    return list;
  }

  const Shape& whole_;
  DType dtype_;
  const MeshAxes& axes_;
  const Cluster& cluster_;
};

}  // namespace

PlacementSteps cheapest_steps(const Shape& whole, DType dtype, const MeshAxes& axes,
                              const Placements& from, const Placements& to,
                              const Cluster& cluster) {
  check_placements("redistribute", whole, from, axes);
  check_placements("redistribute", whole, to, axes);
  return Search(whole, dtype, axes, cluster).run(from, to);
}

}  // namespace weft::distributed
