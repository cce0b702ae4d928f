#pragma once
#include "weft/autograd/elementwise.h"
#include "weft/autograd/view.h"
#include "weft/distributed/redistribute.h"

/// Parts of tensors under placements.
namespace weft::test::placed {

using distributed::AxisPlacement, distributed::MeshAxes, distributed::Placements;

using Op = AxisPlacement::Op;
inline const AxisPlacement kR = AxisPlacement::replicate();
inline const AxisPlacement kSum = AxisPlacement::partial();
inline const AxisPlacement kAvg = AxisPlacement::partial(Op::avg);
inline const AxisPlacement kMax = AxisPlacement::partial(Op::max);
inline const AxisPlacement kMin = AxisPlacement::partial(Op::min);
inline AxisPlacement s(int dim) { return AxisPlacement::shard(dim); }

inline Tensor cut(Tensor x, const nn::ShardSpec& part) {
  for (const auto& c : part.cuts)
    x = narrow(x, c.axis, c.ranges[0].first, c.ranges[0].second - c.ranges[0].first);
  return x.contiguous();
}

/// This rank's part of `whole`: the ranks of a partial axis hold different values.
inline Tensor part_of(const Tensor& whole, const Placements& placements, const MeshAxes& axes) {
  Tensor x = cut(whole, distributed::shard_spec(whole.shape(), placements, axes));
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const int n = axes[i]->size(), r = axes[i]->rank();
    const double d = r - 0.5 * (n - 1);  // these sum to 0
    if (placements[i] == kSum) x = add(mul(x, 1.0 / n), d);
    if (placements[i] == kAvg) x = add(x, 2 * d);
    if (placements[i] == kMax) x = add(x, -double(r));
    if (placements[i] == kMin) x = add(x, double(r));
  }
  return x;
}

/// The whole tensor, on every rank.
inline Tensor value_of(const Tensor& x, const Shape& whole, const Placements& p,
                       const MeshAxes& axes) {
  return redistribute(x, whole, axes, p, Placements(axes.size(), kR));
}

}  // namespace weft::test::placed
