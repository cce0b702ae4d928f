#include <algorithm>

#include "weft/autograd/linear.h"
#include "weft/core/error.h"
#include "weft/distributed/parallelizer.h"

namespace weft::distributed {
namespace {

/// What a rank holds of some consecutive rows of a layer, numbered from the first of them.
struct PartCut {
  UnitCut::Ranges ranges;
  std::vector<SharedRows> shared;
  std::int64_t rows = 0;
};

// Rows [first, first + count), of which this rank's begin at its row `own`.
PartCut part_of(const UnitCut& cut, std::int64_t first, std::int64_t count, std::int64_t own) {
  PartCut part;
  for (const auto& [begin, end] : cut.ranges) {
    const std::int64_t from = std::max(begin, first), to = std::min(end, first + count);
    if (from >= to) continue;
    part.ranges.emplace_back(from - first, to - first);
    part.rows += to - from;
  }
  for (SharedRows s : cut.shared) {
    s.own -= own;
    if (s.own >= 0 && s.own < part.rows) part.shared.push_back(s);
  }
  return part;
}

}  // namespace

// An adapter stands between the `enter` and the `leave` of its layer. The matrix next to the cut
// is cut likewise. Every rank has all of the other one, with the gradient by its own shard.
void Parallelizer::place_adapters(const std::string& name, nn::Linear& layer, const Placement& p) {
  const bool rows = p.kind == Kind::column || p.kind == Kind::head, columns = p.kind == Kind::row;
  check(p.kind != Kind::placed,
        "parallelize: {} has an adapter, which ModulePlacements do not place; use "
        "Placement::column or row",
        name);
  check(plan_.overlap == Overlap::none || tp_.size() == 1,
        "parallelize: {} has an adapter, whose products do not overlap with communication; use "
        "Overlap::none",
        name);
  UnitCut cut;
  if (p.kind == Kind::head)
    cut.ranges = vocabulary(p);
  else if (rows || columns)
    cut = cut_units(name, p.units, tp_);
  const auto is_partial = [&](const Tensor& t) {
    layout_of(t).tp_partial = tp_.size() > 1 && (rows || columns || p.partial);
  };
  const auto place = [&](nn::Lora& adapter, const PartCut& part) {
    check(adapter.drop.p == 0 || tp_.size() == 1,
          "parallelize: the adapter of {} must have dropout 0 on several ranks, got {}", name,
          adapter.drop.p);
    if (columns)
      keep(adapter.a, 1, cut.ranges);
    else
      is_partial(adapter.a);
    if (!rows) return is_partial(adapter.b);
    ParameterLayout* const layout = keep(adapter.b, 0, part.ranges);
    if (part.shared.empty()) return;
    layout->shared_from = part.shared[0].own;
    layout->shared_by = cut.sharers;
    nn::change_shard(adapter, [&](nn::Shard& s) {
      s.product = [share = sharing(part.shared, cut.all_shared)](const Tensor& x, const Tensor& w,
                                                                 const Tensor& bias) {
        return linear(x, share(w), bias);
      };
    });
  };
  if (layer.parts.empty()) return place(layer.lora[0], {cut.ranges, cut.shared});
  std::int64_t first = 0, own = 0;
  for (nn::LinearPart& part : layer.parts) {
    const PartCut here = part_of(cut, first, part.rows, own);
    first += part.rows;
    if (rows && tp_.size() > 1) part.rows = here.rows;
    own += here.rows;
    for (nn::Lora& adapter : layer.lora)
      if (adapter.part == part.name) place(adapter, here);
  }
}

}  // namespace weft::distributed
