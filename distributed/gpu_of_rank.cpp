#include "weft/distributed/gpu_of_rank.h"

#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/core/random.h"

namespace weft::distributed {
namespace {

// A hash of each rank's text, in rank order.
std::vector<std::int64_t> from_all(World& world, const std::string& own) {
  const Tensor in = Tensor::zeros({1}, DType::i64);
  *in.data<std::int64_t>() = static_cast<std::int64_t>(stream_of(own));
  const Tensor out = Tensor::empty({world.size()}, DType::i64);
  world.all().all_gather(out, in).wait();
  return {out.data<std::int64_t>(), out.data<std::int64_t>() + world.size()};
}

}  // namespace

std::string machine_name() {
  // Machines of a cluster may have one host name, and containers of one machine several.
  std::string name;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> name;
  if (!name.empty()) return name;
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return host;
}

Machine this_machine() {
  Machine own{.name = machine_name(), .gpus = {}};
  if constexpr (kWithCuda)
    for (int i = 0; i < cuda::device_count(); ++i) own.gpus.push_back(cuda::rt::unique_id(i));
  return own;
}

Device gpu_of_rank(World& world, bool alone) {
  cuda::check_device({Device::Kind::cuda, 0});
  return gpu_of_rank(world, alone, this_machine());
}

void check_one_machine(World& world, const RankLists& lists, const std::string& axis,
                       const Machine& machine) {
  const std::vector<std::int64_t> machines = from_all(world, machine.name);
  const auto of = [&](int rank) { return machines[static_cast<std::size_t>(rank)]; };
  for (const std::vector<int>& ranks : lists)
    for (const int rank : ranks)
      check(
          of(rank) == of(ranks[0]),
          "mesh: the {} ranks of {} that start with rank {} must be on one machine, and rank {} is "
          "on another; start the ranks of a machine one after another, a multiple of {} on each",
          ranks.size(), axis, ranks[0], rank, ranks.size());
}

Device gpu_of_rank(World& world, bool alone, const Machine& machine) {
  check(!machine.gpus.empty(), "gpu_of_rank: needs at least 1 GPU on {}, got none", machine.name);
  const std::vector<std::int64_t> machines = from_all(world, machine.name);
  const auto me = static_cast<std::size_t>(world.rank());
  std::size_t before = 0;  // ranks of this machine
  for (std::size_t r = 0; r < me; ++r) before += machines[r] == machines[me];
  const std::size_t own = before % machine.gpus.size();
  // Compare the GPUs themselves: a launcher may show each rank its own GPU as device 0.
  const std::vector<std::int64_t> gpus = from_all(world, machine.name + " " + machine.gpus[own]);
  for (std::size_t b = 0; alone && b < gpus.size(); ++b)
    for (std::size_t a = 0; a < b; ++a)
      check(gpus[a] != gpus[b],
            "nccl: ranks {} and {} would share a GPU, and each needs its own; start no more ranks "
            "on a machine than it has GPUs, or use another backend",
            a, b);
  return {Device::Kind::cuda, static_cast<std::int16_t>(own)};
}

}  // namespace weft::distributed
