#include "weft/distributed/unit_cut.h"

#include "weft/autograd/tape.h"
#include "weft/core/allocator.h"
#include "weft/core/error.h"
#include "weft/nn/walk.h"

namespace weft::distributed {

UnitCut cut_units(const std::string& layer, const std::vector<Units>& packed,
                  const ProcessGroup& tp) {
  const std::int64_t ranks = tp.size(), rank = tp.rank();
  UnitCut cut;
  std::int64_t before = 0, own = 0;
  for (const Units& u : packed) {
    const bool divides = u.count % ranks == 0, shares = u.shareable && ranks % u.count == 0;
    if (u.shareable)
      check(divides || shares,
            "parallelize: {} has {} {}, which do not divide among tp {}, nor tp among them", layer,
            u.count, u.what, ranks);
    check(divides || shares, "parallelize: {} has {} {}, which do not divide among tp {}", layer,
          u.count, u.what, ranks);
    const std::int64_t here = divides ? u.count / ranks : 1;
    const std::int64_t first = divides ? rank * here : rank * u.count / ranks;
    cut.ranges.emplace_back(before + first * u.width, before + (first + here) * u.width);
    if (!divides) {
      if (cut.shared.empty()) cut.shared_from = own;
      cut.sharers = static_cast<int>(ranks / u.count);
      cut.shared.push_back({own, cut.all_shared + first * u.width, u.width});
      cut.all_shared += u.count * u.width;
    }
    before += u.count * u.width;
    own += here * u.width;
  }
  return cut;
}

Tensor part_of(const Tensor& whole, const nn::ShardSpec& part) {
  const Tensor out = Tensor::empty(nn::shape_of(part), whole.dtype(), whole.device());
  if (whole.is_meta()) return out;
  const NoGradGuard off;
  const Tensor flat = whole.detach().alias({whole.numel()}, {1}, 0);
  nn::for_each_run(part, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    out.alias({count}, {1}, to).copy_(flat.alias({count}, {1}, from));
  });
  return out;
}

void keep_part(const Tensor& t, const nn::ShardSpec& part) {
  if (part.cuts.empty()) return;
  const CategoryScope category(Category::parameter);
  nn::detail::replace_storage(t, part_of(t, part));
}

std::int64_t width_of(const std::vector<Units>& packed) {
  std::int64_t n = 0;
  for (const Units& u : packed) n += u.count * u.width;
  return n;
}

}  // namespace weft::distributed
