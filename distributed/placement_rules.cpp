#include "weft/distributed/placement_rules.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>

#include "weft/core/error.h"
#include "weft/distributed/placement_steps.h"

namespace weft::distributed {
namespace {

using OpKind = PlacedOp::Kind;
using PartialOp = AxisPlacement::Op;

const AxisPlacement kR = AxisPlacement::replicate();
const AxisPlacement kSum = AxisPlacement::partial(), kAvg = AxisPlacement::partial(PartialOp::avg);
const AxisPlacement kMax = AxisPlacement::partial(PartialOp::max);
const AxisPlacement kMin = AxisPlacement::partial(PartialOp::min);
AxisPlacement cut(int dim) { return AxisPlacement::shard(dim); }

// What an op does with partial operands, without communication. A function that is not linear does
// not commute with a sum, and a decreasing one exchanges maxima and minima.
struct PartialRules {
  OpKind kind;
  const char* name;
  int operands;
  std::vector<PlacementRule> rules;
};

const PartialRules& partial_rules(OpKind kind) {
  static const PartialRules kTable[] = {
      {OpKind::linear, "linear", 2, {{{kSum, kR}, kSum}, {{kR, kSum}, kSum}}},
      {OpKind::matmul, "matmul", 2, {{{kSum, kR}, kSum}, {{kR, kSum}, kSum}}},
      {OpKind::embedding, "embedding", 2, {{{kR, kSum}, kSum}, {{kR, kAvg}, kAvg}}},
      {OpKind::add,
       "add",
       2,
       {{{kSum, kSum}, kSum},
        {{kAvg, kAvg}, kAvg},
        {{kAvg, kR}, kAvg},
        {{kR, kAvg}, kAvg},
        {{kMax, kR}, kMax},
        {{kMin, kR}, kMin}}},
      {OpKind::mul,
       "mul",
       2,
       {{{kSum, kR}, kSum}, {{kR, kSum}, kSum}, {{kAvg, kR}, kAvg}, {{kR, kAvg}, kAvg}}},
      {OpKind::div, "div", 2, {{{kSum, kR}, kSum}, {{kAvg, kR}, kAvg}}},
      {OpKind::maximum, "maximum", 2, {{{kMax, kMax}, kMax}}},
      {OpKind::minimum, "minimum", 2, {{{kMin, kMin}, kMin}}},
      {OpKind::scale, "scale", 1, {{{kSum}, kSum}, {{kAvg}, kAvg}, {{kMax}, kMax}, {{kMin}, kMin}}},
      {OpKind::neg, "neg", 1, {{{kSum}, kSum}, {{kAvg}, kAvg}, {{kMax}, kMin}, {{kMin}, kMax}}},
      {OpKind::shift, "shift", 1, {{{kAvg}, kAvg}, {{kMax}, kMax}, {{kMin}, kMin}}},
      {OpKind::monotone, "monotone", 1, {{{kMax}, kMax}, {{kMin}, kMin}}},
      {OpKind::pointwise, "pointwise", 1, {}},
      {OpKind::sum, "sum", 1, {{{kSum}, kSum}, {{kAvg}, kAvg}}},
      {OpKind::mean, "mean", 1, {{{kSum}, kSum}, {{kAvg}, kAvg}}},
      {OpKind::max, "max", 1, {{{kMax}, kMax}}},
      {OpKind::min, "min", 1, {{{kMin}, kMin}}},
      {OpKind::rows, "rows", 1, {}},
      {OpKind::transpose,
       "transpose",
       1,
       {{{kSum}, kSum}, {{kAvg}, kAvg}, {{kMax}, kMax}, {{kMin}, kMin}}},
      {OpKind::select,
       "select",
       1,
       {{{kSum}, kSum}, {{kAvg}, kAvg}, {{kMax}, kMax}, {{kMin}, kMin}}},
  };
  return *std::find_if(std::begin(kTable), std::end(kTable),
                       [&](const PartialRules& r) { return r.kind == kind; });
}

// Axis `dim` of the broadcast result in x: its shard, or x whole where x is broadcast along it.
AxisPlacement along(const Shape& x, int dim, int result_ndim) {
  const int own = dim - (result_ndim - x.size());
  return own < 0 || x[own] == 1 ? kR : cut(own);
}

void add_broadcast(const std::vector<Shape>& in, std::vector<PlacementRule>& rules) {
  int ndim = 0;
  for (const Shape& x : in) ndim = std::max(ndim, x.size());
  for (int d = 0; d < ndim; ++d) {
    PlacementRule rule{{}, cut(d)};
    for (const Shape& x : in) rule.operands.push_back(along(x, d, ndim));
    if (std::any_of(rule.operands.begin(), rule.operands.end(),
                    [](const AxisPlacement& p) { return p.is_shard(); }))
      rules.push_back(std::move(rule));
  }
}

// What the ranks have after reducing their chunks of an axis. An average of chunks of different
// lengths is not that of all elements, and an empty chunk has no maximum.
std::optional<AxisPlacement> reduced(OpKind kind, std::int64_t length, int ranks) {
  if (kind == OpKind::sum) return kSum;
  if (length == 0 || length % ranks != 0) return {};
  if (kind == OpKind::mean) return kAvg;
  if (kind == OpKind::max) return kMax;
  if (kind == OpKind::min) return kMin;
  return {};
}

void add_shards(const PlacedOp& op, const std::vector<Shape>& in, int ranks,
                std::vector<PlacementRule>& rules) {
  const int n = in[0].size();
  switch (op.kind) {
    case OpKind::linear:
      for (int d = 0; d < n - 1; ++d) rules.push_back({{cut(d), kR}, cut(d)});
      rules.push_back({{kR, cut(0)}, cut(n - 1)});
      rules.push_back({{cut(n - 1), cut(1)}, kSum});
      return;
    case OpKind::matmul:
      for (int d = 0; d < n - 2; ++d) rules.push_back({{cut(d), cut(d)}, cut(d)});
      rules.push_back({{cut(n - 2), kR}, cut(n - 2)});
      rules.push_back({{kR, cut(n - 1)}, cut(n - 1)});
      rules.push_back({{cut(n - 1), cut(n - 2)}, kSum});
      return;
    case OpKind::embedding:
      for (int d = 0; d < n; ++d) rules.push_back({{cut(d), kR}, cut(d)});
      rules.push_back({{kR, cut(1)}, cut(n)});
      rules.push_back({{kR, cut(0)}, kSum});
      return;
    case OpKind::sum:
    case OpKind::mean:
    case OpKind::max:
    case OpKind::min:
    case OpKind::rows:
    case OpKind::select:
      for (int d = 0; d < n; ++d) {
        if (d != op.dim)
          rules.push_back({{cut(d)}, cut(d)});
        else if (const auto p = reduced(op.kind, in[0][d], ranks))
          rules.push_back({{cut(d)}, *p});
      }
      return;
    case OpKind::transpose:
      for (int d = 0; d < n; ++d)
        rules.push_back({{cut(d)}, cut(d == op.dim ? op.other : d == op.other ? op.dim : d)});
      return;
    default:
      add_broadcast(in, rules);
  }
}

class Choice {
 public:
  Choice(const PlacedOp& op, const std::vector<PlacedOperand>& in, const MeshAxes& axes,
         const Cluster& cluster)
      : in_(in), axes_(axes), cluster_(cluster) {
    std::vector<Shape> shapes;
    for (const PlacedOperand& x : in) {
      check_placements(partial_rules(op.kind).name, x.whole, x.placements, axes);
      shapes.push_back(x.whole);
    }
    int ranks = 1;  // of the mesh: all of its axes may cut the same one of a tensor
    for (const ProcessGroup* g : axes) ranks *= g->size();
    rules_.assign(axes.size(), placement_rules(op, shapes, ranks));
    refuse_cut_select(op);
    best_.us = std::numeric_limits<double>::infinity();
    now_.operands.resize(in.size());
    try_all(0);
    check(!best_.result.empty() || axes.empty(), "{}: no rule computes with {}",
          partial_rules(op.kind).name, operands_text());
  }
  PlacementChoice best() && { return std::move(best_); }

 private:
  std::string operands_text() const {
    std::string s;
    for (const PlacedOperand& x : in_)
      s += (s.empty() ? "" : ", ") + describe(x.dtype, x.whole, x.placements, axes_);
    return s;
  }

  // Gathering an axis in order to take it apart is seldom meant.
  void refuse_cut_select(const PlacedOp& op) const {
    if (op.kind != OpKind::select) return;
    for (const AxisPlacement& p : in_[0].placements)
      check(!p.is_shard(op.dim),
            "select: axis {} must not be sharded, got {}; redistribute it first", op.dim,
            operands_text());
  }

  void try_all(std::size_t axis) {
    if (axis == axes_.size()) return compare();
    for (const PlacementRule& rule : rules_[axis]) {
      for (std::size_t i = 0; i < in_.size(); ++i) now_.operands[i].push_back(rule.operands[i]);
      now_.result.push_back(rule.result);
      try_all(axis + 1);
      now_.result.pop_back();
      for (Placements& p : now_.operands) p.pop_back();
    }
  }

  void compare() {
    double us = 0;
    if (!reduces_in_any_order(now_.result)) return;
    for (std::size_t i = 0; i < in_.size(); ++i) {
      if (!reduces_in_any_order(now_.operands[i])) return;
      if (now_.operands[i] == in_[i].placements) continue;
      if (!in_[i].moves) return;
      us += cheapest_steps(in_[i].whole, in_[i].dtype, axes_, in_[i].placements, now_.operands[i],
                           cluster_)
                .us;
    }
    if (us >= best_.us) return;
    best_ = now_;
    best_.us = us;
  }

  const std::vector<PlacedOperand>& in_;
  const MeshAxes& axes_;
  const Cluster& cluster_;
  std::vector<std::vector<PlacementRule>> rules_;
  PlacementChoice now_, best_;
};

}  // namespace

std::vector<PlacementRule> placement_rules(const PlacedOp& op, const std::vector<Shape>& operands,
                                           int ranks) {
  const PartialRules& partials = partial_rules(op.kind);
  check(operands.size() == static_cast<std::size_t>(partials.operands),
        "placement_rules: {} must have {} operands, got {}", partials.name, partials.operands,
        operands.size());
  const int ndim = operands[0].size();
  const int least = op.kind == OpKind::matmul ? 2 : op.kind == OpKind::linear ? 1 : 0;
  check(ndim >= least, "placement_rules: the first operand of {} must have {} axes, got {}",
        partials.name, least, operands[0]);
  if (op.kind >= OpKind::sum)
    for (const int d : {op.dim, op.other})
      check(d >= 0 && d < ndim, "placement_rules: {} needs an axis of {}, got {}", partials.name,
            operands[0], d);
  std::vector<PlacementRule> rules{{std::vector<AxisPlacement>(operands.size(), kR), kR}};
  add_shards(op, operands, ranks, rules);
  rules.insert(rules.end(), partials.rules.begin(), partials.rules.end());
  return rules;
}

PlacementChoice choose_placements(const PlacedOp& op, const std::vector<PlacedOperand>& operands,
                                  const MeshAxes& axes, const Cluster& cluster) {
  return Choice(op, operands, axes, cluster).best();
}

}  // namespace weft::distributed
