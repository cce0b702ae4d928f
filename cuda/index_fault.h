#pragma once
#include "weft/cuda/device.h"

namespace weft::cuda {

/// Reports an index out of range; the host throws when it next waits. The first report is kept. Any
/// number of threads may call it.
__device__ inline void report(detail::IndexFault* fault, const detail::IndexFault& what) {
  using Fault = detail::IndexFault;
  if (fault->set != Fault::none) return;
  if (atomicCAS(&fault->set, std::int32_t{Fault::none}, std::int32_t{Fault::being_written}) !=
      Fault::none)
    return;
  fault->may_ignore = what.may_ignore;
  fault->op = what.op;
  fault->label = what.label;
  fault->limit = what.limit;
  fault->value = what.value;
  fault->ignored = what.ignored;
  __threadfence_system();
  atomicExch(&fault->set, std::int32_t{Fault::complete});
}

}  // namespace weft::cuda
