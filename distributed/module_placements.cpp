#include "weft/distributed/module_placements.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/distributed/placement_rules.h"
#include "weft/distributed/redistribute.h"

namespace weft::distributed {
namespace {

// x of this rank under another placement. Its chunks are equal, so it shows the shape of the whole.
Tensor moved(const std::string& name, const Tensor& x, const AxisPlacement& from,
             const AxisPlacement& to, const AxisPlacement& gradient, ProcessGroup& tp) {
  Shape whole = x.shape();
  const AxisPlacement here = from.of_axes(whole.size()), there = to.of_axes(whole.size());
  for (const AxisPlacement& p : {here, there})
    check(!p.is_shard() || (p.dim() >= 0 && p.dim() < whole.size()),
          "parallelize: {} needs an axis for {}, got {}", name, p.text(), x.shape());
  if (here.is_shard()) whole[here.dim()] *= tp.size();
  if (there.is_shard())
    check(whole[there.dim()] % tp.size() == 0,
          "parallelize: {} cuts {} as {}, which does not "
          "divide among tp {}",
          name, whole, there.text(), tp.size());
  return redistribute(x, whole, {&tp}, {here}, {there}, kUsualCluster,
                      {gradient.is_shard() ? there : gradient});
}

}  // namespace

ModuleMoves moves_of(const std::string& name, const ModulePlacements& m, ProcessGroup& tp) {
  ModuleMoves out{.used = m.used.value_or(m.input),
                  .computed = m.computed.value_or(m.output),
                  .output = m.output,
                  .enter = {},
                  .leave = {}};
  check(!m.input.is_partial() && !out.used.is_partial() && !m.output.is_partial(),
        "parallelize: {} must take and give R or a shard, got {}, used as {}, and {}", name,
        m.input.text(), out.used.text(), m.output.text());
  check(!out.computed.is_partial() || out.computed == AxisPlacement::partial(),
        "parallelize: {} must compute R, a shard or P(sum), got {}", name, out.computed.text());
  check(out.used.is_replicate() || !out.computed.is_replicate(),
        "parallelize: {} computes R from {}, which has no gradient; state P(sum) or a shard", name,
        out.used.text());
  out.partial = !out.computed.is_replicate();
  const AxisPlacement dx =
      out.partial && out.used.is_replicate() ? AxisPlacement::partial() : out.used;
  if (m.input != out.used || dx.is_partial())
    out.enter = [=, from = m.input, to = out.used, g = &tp](const Tensor& x) {
      return moved(name, x, from, to, dx, *g);
    };
  if (out.computed != m.output)
    out.leave = [=, from = out.computed, to = m.output, g = &tp](const Tensor& y) {
      return moved(name, y, from, to, to, *g);
    };
  return out;
}

ModulePlacements of_linear(ModulePlacements m, const Shape& weight, ProcessGroup& tp) {
  const auto found = m.parameters.find("weight");
  const AxisPlacement w =
      found == m.parameters.end() ? AxisPlacement::replicate() : found->second.of_axes(2);
  // Any sizes will do: the weight does not move, so that one rule or the input decides.
  const int axes = std::max(2, m.input.is_shard() ? m.input.dim() + 2 : 2);
  Shape x;
  for (int i = 0; i + 1 < axes; ++i) x.push_back(tp.size());
  x.push_back(weight[1]);
  const AxisPlacement input = m.input.of_axes(axes);
  const PlacementChoice choice = choose_placements(
      {PlacedOp::Kind::linear},
      {{.whole = x, .placements = {m.used ? m.used->of_axes(axes) : input}, .moves = !m.used},
       {.whole = weight, .placements = {w}, .moves = false}},
      {&tp}, kUsualCluster);
  const auto from_last = [&](const AxisPlacement& p) {
    return p.is_shard(axes - 1) ? AxisPlacement::shard(-1) : p;
  };
  m.used = from_last(choice.operands[0][0]);
  m.computed = from_last(choice.result[0]);
  m.input = from_last(input);
  return m;
}

}  // namespace weft::distributed
