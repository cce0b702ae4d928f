#include "weft/distributed/gpu_of_rank.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/core/random.h"

namespace weft::distributed {
namespace {

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// A hash of each rank's text, in rank order.
std::vector<std::int64_t> from_all(World& world, const std::string& own) {
  const Tensor in = Tensor::zeros({1}, DType::i64);
  *in.data<std::int64_t>() = static_cast<std::int64_t>(stream_of(own));
  const Tensor out = Tensor::empty({world.size()}, DType::i64);
  world.all().all_gather(out, in).wait();
  return {out.data<std::int64_t>(), out.data<std::int64_t>() + world.size()};
}

}  // namespace

Device gpu_of_rank(World& world, bool alone) {
  Device device{Device::Kind::cuda, 0};
  cuda::check_device(device);
  const std::vector<std::int64_t> hosts = from_all(world, host_name());
  const auto me = static_cast<std::size_t>(world.rank());
  int before = 0;  // ranks of this machine
  for (std::size_t r = 0; r < me; ++r) before += hosts[r] == hosts[me];
  device.index = static_cast<std::int16_t>(before % cuda::device_count());
  // Compare PCI addresses: a launcher may show each rank its own GPU as device 0.
  std::string place;
  if constexpr (kWithCuda) place = cuda::rt::pci_address(device.index);
  const std::vector<std::int64_t> gpus = from_all(world, host_name() + " " + place);
  for (std::size_t b = 0; alone && b < gpus.size(); ++b)
    for (std::size_t a = 0; a < b; ++a)
      check(gpus[a] != gpus[b],
            "nccl: ranks {} and {} would share a GPU, and each needs its own; start no more ranks "
            "on a machine than it has GPUs, or use another backend",
            a, b);
  return device;
}

}  // namespace weft::distributed
