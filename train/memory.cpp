#include "weft/train/memory.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "weft/core/cgroup.h"
#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/core/memory_trace.h"
#include "weft/distributed/checkpoint.h"
#include "weft/distributed/launcher.h"
#include "weft/train/planned_step.h"

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

// The number of ranks in this process; 0: started by a launcher, perhaps on other machines.
std::int64_t own_ranks(const Options& o) {
  return distributed::launched_ranks() > 1 ? 0 : std::max<std::int64_t>(o.parallel.ranks, 1);
}

}  // namespace

void check_memory(double bytes, const char* what, Device device) {
  const double there = memory_there_is(device);
  check(bytes <= there, "memory: {} needs {} GB at least, and there are {} GB", what,
        gigabytes(bytes), gigabytes(there));
}

void check_least_memory(const Options& o, double parameters, double activation_of_row) {
  const Device device = Device::parse(o.machine.device);
  if (device.is_meta()) return;
  const auto width = static_cast<double>(size_of(o.machine.model_dtype()));
  // Ranks that are threads share the memory of the host or of one GPU, and together hold the model
  // at least once. All other ranks have separate memory for their shards.
  const bool shared = own_ranks(o) > 0 && o.parallel.backend != Backend::nccl;
  const double shares = shared ? 1 : real(o.parallel.tp) * real(o.parallel.ep);
  check_memory(2 * width * parameters / shares, "the model", device);
  if (shared)
    check_memory(width * real(o.micro_batch ? o.micro_batch : o.batch) * activation_of_row,
                 "a batch", device);
}

std::int64_t predict_peak_bytes(const Task& task, const Options& options, const data::Batch& rows,
                                int ranks, int rank) {
  const MemoryTrace trace(planned_devices(options));
  PlannedStep step(task, options, rows, ranks, rank);
  step(1);
  const std::int64_t begin = trace.events();
  step(2);
  return trace.peak(begin).live.total() + step.bytes_left_out();
}

std::int64_t copied_by_save(TrainStep& step, const Options& o) {
  const auto before_the_end = [&](std::int64_t every) { return every > 0 && every < o.steps; };
  if (o.run.async_save == AsyncSave::off ||
      !(before_the_end(o.run.save_every) || (o.run.keep_best && before_the_end(o.run.eval_every))))
    return 0;
  return distributed::bytes_of_copies(distributed::sources_of(step.model_slices())) +
         distributed::bytes_of_copies(step.optimizer_slices());
}

std::int64_t predict_copied_by_save(const Task& task, const Options& options,
                                    const data::Batch& rows, int ranks, int rank) {
  return copied_by_save(PlannedStep(task, options, rows, ranks, rank).step(), options);
}

void check_peak_memory(const Options& o, const std::function<std::int64_t()>& bytes_of_rank) {
  const std::int64_t own = own_ranks(o);
  if (!Device::parse(o.machine.device).is_cpu() || own == 0) return;
  check_memory(real(own) * real(bytes_of_rank()), "a step", kCpu);
}

}  // namespace weft::train
