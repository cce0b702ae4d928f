#include "weft/examples/common/check_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "weft/core/cgroup.h"
#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/distributed/mpi_world.h"
#include "weft/examples/common/ranks.h"
#include "weft/examples/common/session.h"

namespace weft::train {
namespace {

double real(std::int64_t n) { return static_cast<double>(n); }

double memory_there_is(Device device) {
  if (device.is_cuda()) return real(cuda::total_memory(device));
  const double machine = real(sysconf(_SC_PHYS_PAGES)) * real(sysconf(_SC_PAGE_SIZE));
  const std::optional<std::int64_t> group = detail::cgroup_limits().memory;
  return group ? std::min(machine, real(*group)) : machine;
}

double gigabytes(double bytes) { return std::round(bytes * 1e-8) / 10; }

// Ranks whose tensors this process holds; 0: a launcher's, which may be on other machines.
std::int64_t own_ranks(const Options& o) {
  return distributed::launched_ranks() > 1 ? 0 : std::max<std::int64_t>(o.parallel.ranks, 1);
}

}  // namespace

void check_memory(double bytes, const char* what, Device device) {
  const double there = memory_there_is(device);
  check(bytes <= there, "memory: {} needs {} GB at least, and there are {} GB", what,
        gigabytes(bytes), gigabytes(there));
}

void check_least_memory(const Options& o) {
  const Device device = Device::parse(o.machine.device);
  if (device.is_meta()) return;
  const auto width = static_cast<double>(size_of(o.machine.dtype));
  // Ranks that are threads share the host's memory or a GPU's, and hold the model at least once
  // between them. All others have memory of their own for their share.
  const bool shared = own_ranks(o) > 0 && o.parallel.backend != Backend::nccl;
  const double shares = shared ? 1 : real(o.parallel.tp) * real(o.parallel.ep);
  check_memory(2 * width * real(o.gpt().parameter_count()) / shares, "the model", device);
  if (shared)
    check_memory(width * real(o.step.micro_batch ? o.step.micro_batch : o.step.batch) *
                     real(o.model.seq) * real(o.model.dim),
                 "a batch", device);
}

void check_peak_memory(const Options& o) {
  const std::int64_t own = own_ranks(o);
  if (!Device::parse(o.machine.device).is_cpu() || own == 0) return;
  const int ranks = o.parallel.ranks > 0 ? static_cast<int>(o.parallel.ranks) : 0;
  check_memory(real(own) * real(predict_peak_bytes(o, ranks, 0)), "a step", kCpu);
}

}  // namespace weft::train
