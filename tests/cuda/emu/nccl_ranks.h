#pragma once
#include "weft/core/own_stream.h"
#include "weft/distributed/nccl_world.h"

namespace weft::distributed::nccl_test {

inline Device gpu_of(int rank) { return {Device::Kind::cuda, static_cast<std::int16_t>(rank % 2)}; }

// f(world over NCCL, its device) on every rank.
template <class F>
void over_nccl(int ranks, F f, const WorldOptions& options = {}) {
  run_ranks(ranks, [&](World& bootstrap) {
    const Device gpu = gpu_of(bootstrap.rank());
    const cuda::OwnStream stream(gpu);
    const auto world = nccl_world(bootstrap, gpu, options);
    f(*world, gpu);
  });
}

}  // namespace weft::distributed::nccl_test
