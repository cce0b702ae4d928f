#include "weft/distributed/expert_dispatcher.h"

#include "weft/autograd/view.h"
#include "weft/core/error.h"

namespace weft::distributed {

ExpertDispatcher::ExpertDispatcher(ExpertGroups groups, std::int64_t experts,
                                   std::int64_t alignment)
    : groups_(groups), experts_(experts), alignment_(alignment) {
  check(experts > 0 && experts % groups.ep->size() == 0,
        "expert parallelism: the number of experts {} must be a multiple of ep {}", experts,
        groups.ep->size());
}

Tensor ExpertDispatcher::exchange_counts(const Tensor& own, const Tensor& planned) const {
  const std::int64_t n = own.numel();
  const Tensor all = Tensor::empty({ranks(), n}, DType::i64, own.device());
  groups_.tp_ep->all_gather(all, own.view({1, n})).wait();
  return all.is_meta() ? contiguous(expand(planned, {ranks(), n})) : to_device(all, kCpu);
}

}  // namespace weft::distributed
