#include "weft/distributed/expert_dispatcher.h"

#include <algorithm>

#include "weft/autograd/view.h"
#include "weft/core/error.h"
#include "weft/core/memory_trace.h"

namespace weft::distributed {

ExpertGroups::ExpertGroups(const DeviceMesh& mesh)
    : ep(&mesh.ep()), etp(&mesh.etp()), tp_ep(&mesh.tp_ep()), batches(0) {
  const std::vector<int>& here = tp_ep->ranks();
  for (const std::vector<int>& batch : rank_lists(mesh.world().size(), mesh.degrees(), "tp_cp"))
    batches +=
        std::find_first_of(batch.begin(), batch.end(), here.begin(), here.end()) != batch.end();
}

ExpertDispatcher::ExpertDispatcher(ExpertGroups groups, std::int64_t experts,
                                   std::int64_t alignment, nn::TokenForm form)
    : groups_(groups), experts_(experts), alignment_(alignment), form_(form) {
  check(experts > 0 && experts % groups.ep->size() == 0,
        "expert parallelism: the number of experts {} must be a multiple of ep {}", experts,
        groups.ep->size());
}

ExpertDispatcher::Counts ExpertDispatcher::send_counts(const Tensor& own) const {
  Counts counts;
  counts.all = Tensor::empty({ranks(), own.numel()}, DType::i64, own.device());
  counts.work = groups_.tp_ep->all_gather(counts.all, own.view({1, own.numel()}));
  return counts;
}

Tensor ExpertDispatcher::receive_counts(Counts counts, const Tensor& planned) const {
  counts.work.wait();
  if (!counts.all.is_meta()) {
    Tensor on_host = to_device(counts.all, kCpu);
    groups_.tp_ep->check_well();  // after an abort the counts are whatever was in memory
    return on_host;
  }
  const UntracedScope untraced;  // on the CPU they are counts.all
  return contiguous(expand(planned, counts.all.shape()));
}

}  // namespace weft::distributed
