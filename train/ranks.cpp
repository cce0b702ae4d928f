#include "weft/train/ranks.h"

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "weft/core/error.h"
#include "weft/core/own_stream.h"
#include "weft/core/random.h"
#include "weft/distributed/agree.h"
#include "weft/distributed/gpu_of_rank.h"
#include "weft/distributed/launcher.h"
#include "weft/distributed/message_world.h"
#include "weft/distributed/mpi_world.h"
#include "weft/distributed/nccl_world.h"
#include "weft/distributed/tcp_world.h"
#include "weft/train/agreement.h"
#include "weft/train/flags.h"

namespace weft::train {
namespace {

using distributed::Degrees;
using distributed::World;
using distributed::WorldOptions;

// True if ranks are processes of a launcher.
bool as_launched(const Options& options) {
  const bool may =
      options.parallel.backend == Backend::automatic || options.parallel.backend == Backend::nccl;
  return options.parallel.backend == Backend::mpi || options.parallel.backend == Backend::tcp ||
         (may && distributed::is_launched());
}

// A rank started with other flags would call other collectives or train another model.
void check_same_options(World& world, const Options& o) {
  check_same_settings(world, static_cast<std::int64_t>(stream_of(config_of(o))));
}

// Checked before groups are made: ranks that differ would wait in different groups.
Degrees agreed_degrees(World& host, const Options& o) {
  check_same_options(host, o);
  return degrees_of(o);
}

bool over_nccl(const Options& o) {
  return o.parallel.backend == Backend::nccl ||
         (o.parallel.backend == Backend::automatic && distributed::is_launched());
}

// Runs f as one rank of `world`, which moves host tensors.
int run_as_rank(World& world, const Options& options, const WorldOptions& world_options,
                const std::function<int(const Ranks&)>& f) {
  Device device = Device::parse(options.machine.device);
  if (!device.is_cuda()) {
    Ranks ranks(world, options);
    return f(ranks);
  }
  check(!options.machine.graph, "--graph: does not exist yet for several ranks");
  const bool nccl = over_nccl(options), threads = !nccl && options.parallel.ranks > 0;
  check(!nccl || options.machine.device == "cuda",
        "--device: must be cuda over NCCL, where each rank takes its own GPU, got {}",
        options.machine.device);
  // Ranks that are threads share the named GPU; others take their machine's GPUs in turn, unless
  // one is named.
  if (!threads && options.machine.device == "cuda") device = distributed::gpu_of_rank(world, nccl);
  const cuda::OwnStream stream(device);
  if (!nccl) {
    Ranks ranks(world, world, device, options);
    return f(ranks);
  }
  const auto gpus = distributed::nccl_world(world, device, world_options);
  Ranks ranks(*gpus, world, device, options);
  return f(ranks);
}

// If one rank ends, the job ends; its ranks agree on which one reports the reason.
int as_process(std::unique_ptr<World> world, const Options& options,
               const WorldOptions& world_options, const std::function<int(const Ranks&)>& f) {
  try {
    return run_as_rank(*world, options, world_options, f);
  } catch (const std::exception& e) {
    return end_process(options.program, std::move(world), e);
  }
}

}  // namespace

int end_process(const std::string& program, std::unique_ptr<World> world, const std::exception& e) {
  distributed::end_with_error(std::move(world), e.what(), [&](const std::string& line) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), line.c_str());
  });
  const auto* const error = dynamic_cast<const Error*>(&e);
  return static_cast<int>(error ? error->fault() : Fault::system);
}

Degrees degrees_of(const Options& o) {
  return {.dp = static_cast<int>(o.parallel.dp),
          .tp = static_cast<int>(o.parallel.tp),
          .ep = static_cast<int>(o.parallel.ep),
          .etp = static_cast<int>(o.parallel.etp),
          .dp_replicate = static_cast<int>(o.parallel.dp_replicate)};
}

int ranks_of(const Options& o) {
  if (o.parallel.ranks > 0) return static_cast<int>(o.parallel.ranks);
  return static_cast<int>(std::max<std::int64_t>(o.parallel.dp, 1) * o.parallel.tp);
}

Ranks::Ranks(World& world, const Options& options)
    : Ranks(world, world, Device::parse(options.machine.device), options) {}

Ranks::Ranks(World& world, World& host, Device device, const Options& options)
    : world_(world),
      host_(host),
      device_(device),
      imagined_(device.is_meta()),
      mesh_(world, agreed_degrees(host, options)),
      rows_(options.batch / data_ranks()) {
  const std::int64_t micro = options.micro_batch;
  check(options.batch % data_ranks() == 0, "--batch: must be a multiple of dp {}, got {}",
        data_ranks(), options.batch);
  check(micro == 0 || rows_ % micro == 0,
        "--micro-batch: must divide the {} rows of a rank (--batch {} / dp {}), got {}", rows_,
        options.batch, data_ranks(), micro);
  if (!imagined_ && as_launched(options) && options.parallel.tp > 1 &&
      !options.parallel.tp_across_machines)
    distributed::check_one_machine(
        host, distributed::rank_lists(world.size(), mesh_.degrees(), "tp"), "--tp");
}

Ranks::Ranks(std::unique_ptr<World> own, const Options& options)
    : own_(std::move(own)),
      world_(*own_),
      host_(*own_),
      device_(Device::parse(options.machine.device)),
      imagined_(device_.is_meta()),
      mesh_(world_),
      rows_(options.batch) {}

void Ranks::add_up(const Tensor& values) const {
  if (size() > 1) (values.device().is_cpu() ? host_ : world_).all().all_reduce(values).wait();
}

void Ranks::largest(const Tensor& values) const {
  if (size() > 1)
    (values.device().is_cpu() ? host_ : world_)
        .all()
        .all_reduce(values, distributed::Reduce::max)
        .wait();
}

void Ranks::on_first(const std::function<void()>& f) const {
  if (imagined_)
    f();
  else
    distributed::on_rank_0(host_, f);
}

std::int64_t Ranks::of_first(std::int64_t own) const {
  return imagined_ ? own : distributed::from_rank_0(host_, own);
}

namespace {

std::unique_ptr<World> launched_world(Backend backend, const WorldOptions& options) {
  if (backend == Backend::mpi) return distributed::mpi_world(options);
  if (backend == Backend::tcp) return distributed::tcp_world(options);
  return distributed::world_of_launch(options);
}

bool plans_for_many(const Options& options) {
  return Device::parse(options.machine.device).is_meta() && ranks_of(options) > 1;
}

void check_degrees_alone(const Options& options) {
  const ParallelOptions& p = options.parallel;
  check(p.tp == 1 && p.ep == 1 && p.dp <= 1 && p.etp <= 1,
        "--ranks: one rank cannot share work among --dp {}, --tp {}, --ep {}, --etp {}; say how "
        "many there are",
        p.dp, p.tp, p.ep, p.etp);
}

bool is_alone(const Options& options) {
  return !plans_for_many(options) && !as_launched(options) && options.parallel.ranks <= 1 &&
         options.parallel.backend != Backend::nccl;
}

}  // namespace

void check_ranks(const Options& options) {
  // Even under a launcher there may be a single process.
  check(!Device::parse(options.machine.device).is_meta() || !distributed::is_launched() ||
            (options.parallel.backend == Backend::fake && distributed::launched_rank() == 0),
        "--device: meta plans for any number of ranks in one process; start it without a launcher, "
        "or alone with --backend fake");
  check(options.parallel.backend != Backend::thread || distributed::launched_ranks() <= 1,
        "--backend: thread runs all ranks in one process, and here are {}, each with a run of its "
        "own; start it without a launcher",
        distributed::launched_ranks());
  check(!distributed::lacks_rank(),
        "launcher: WORLD_SIZE names several ranks and RANK is not set, so each process would be a "
        "run of its own; set both, or neither");
  check(distributed::is_launched() || distributed::launched_ranks() <= 1,
        "launcher: it started {} processes, and MPI does not know of it, so each would be a run of "
        "its own in --out; use mpirun, or srun with a plugin of srun --mpi=list, such as pmix, or "
        "set RANK and WORLD_SIZE",
        distributed::launched_ranks());
  check(plans_for_many(options) || !as_launched(options) || options.parallel.ranks == 0,
        "--ranks: is for threads; the launcher has said how many ranks there are; to resume a run "
        "of threads, "
        "add --ranks 0");
  if (is_alone(options)) check_degrees_alone(options);
}

Ranks Ranks::alone(const Options& options) {
  check(options.parallel.ranks <= 1, "--ranks: must be at most 1 for a run alone, got {}",
        options.parallel.ranks);
  check_degrees_alone(options);
  return {World::alone(), options};
}

int run_on_ranks(const Options& options, const std::function<int(const Ranks&)>& f) {
  check_ranks(options);
  apply(options.machine);
  manual_seed(static_cast<std::uint64_t>(options.machine.seed));
  const int lanes = static_cast<int>(options.parallel.lanes);
  // Where a failed job stopped: the latest collectives of every rank.
  const WorldOptions world_options{.timeout_s = options.parallel.timeout,
                                   .dump_folder = options.out + "/flight",
                                   .lanes = lanes};
  // With NCCL, the hosts' own collectives go to a folder of their own.
  WorldOptions host_options = world_options;
  if (Device::parse(options.machine.device).is_cuda() && over_nccl(options))
    host_options.dump_folder += "/host";
  if (plans_for_many(options)) {
    const auto world = distributed::fake_world(static_cast<int>(options.parallel.rank),
                                               ranks_of(options), {.lanes = lanes});
    Ranks ranks(*world, options);
    return f(ranks);
  }
  if (as_launched(options))
    return as_process(launched_world(options.parallel.backend, host_options), options,
                      world_options, f);
  if (is_alone(options)) return f(Ranks::alone(options));
  std::atomic<int> status{0};
  distributed::run_ranks(
      std::max(1, static_cast<int>(options.parallel.ranks)),
      [&](World& world) {
        const int own = run_as_rank(world, options, world_options, f);
        if (world.rank() == 0) status = own;
      },
      host_options);
  return status;
}

}  // namespace weft::train
