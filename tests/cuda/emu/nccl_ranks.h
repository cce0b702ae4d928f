#pragma once
#include "weft/core/cuda.h"
#include "weft/distributed/nccl_world.h"

namespace weft::distributed::nccl_test {

inline Device gpu_of(int rank) { return {Device::Kind::cuda, static_cast<std::int16_t>(rank % 2)}; }

// Ranks on one GPU must not wait for each other's kernels.
class OwnStream {
 public:
  explicit OwnStream(Device device) : stream_(cuda::Stream::take(device)), scope_(stream_) {}
  ~OwnStream() { stream_.give_back(); }
  OwnStream(const OwnStream&) = delete;

 private:
  cuda::Stream stream_;
  cuda::StreamScope scope_;
};

// f(world over NCCL, its device) on every rank.
template <class F>
void over_nccl(int ranks, F f, const WorldOptions& options = {}) {
  run_ranks(ranks, [&](World& bootstrap) {
    const Device gpu = gpu_of(bootstrap.rank());
    const OwnStream stream(gpu);
    const auto world = nccl_world(bootstrap, gpu, options);
    f(*world, gpu);
  });
}

}  // namespace weft::distributed::nccl_test
