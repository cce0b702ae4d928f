#include "weft/examples/common/ranks.h"

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "weft/core/error.h"
#include "weft/core/random.h"
#include "weft/distributed/mpi_world.h"

namespace weft::train {
namespace {

using distributed::Degrees;
using distributed::World;

Degrees degrees_of(const Options& o) {
  return {.dp = static_cast<int>(o.dp),
          .tp = static_cast<int>(o.tp),
          .ep = static_cast<int>(o.ep),
          .etp = static_cast<int>(o.etp)};
}

// A rank that was started with other flags would call other collectives, or train another model.
void check_same_options(World& world, const Options& o) {
  const auto own = static_cast<std::int64_t>(stream_of(to_toml(o)));
  const Tensor low = Tensor::full({1}, 0, DType::i64), high = Tensor::full({1}, 0, DType::i64);
  *low.data<std::int64_t>() = *high.data<std::int64_t>() = own;
  world.all().all_reduce(low, distributed::Reduce::min).wait();
  world.all().all_reduce(high, distributed::Reduce::max).wait();
  check(*low.data<std::int64_t>() == *high.data<std::int64_t>(),
        "ranks must be started with the same flags and config, but they differ");
}

// The end of one rank is that of the job, and its ranks agree on who says why.
int as_process(const Options& options, std::unique_ptr<World> world,
               const std::function<int(Ranks*)>& f) {
  try {
    Ranks ranks(*world, options);
    return f(&ranks);
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

int ranks_of(const Options& o) {
  if (o.ranks > 0) return static_cast<int>(o.ranks);
  return static_cast<int>(std::max<std::int64_t>(o.dp, 1) * o.tp);
}

Ranks::Ranks(World& world, const Options& options)
    : world_(world),
      imagined_(Device::parse(options.device).is_meta()),
      mesh_(world, degrees_of(options)) {
  check_same_options(world, options);
  const std::int64_t rows = options.batch / data_ranks(), micro = options.micro_batch;
  check(options.batch % data_ranks() == 0, "--batch: must be a multiple of dp {}, got {}",
        data_ranks(), options.batch);
  check(micro == 0 || rows % micro == 0,
        "--micro-batch: must divide the {} sequences of a rank (--batch {} / dp {}), got {}", rows,
        options.batch, data_ranks(), micro);
}

int run_on_ranks(const Options& options, const std::function<int(Ranks*)>& f) {
  // Where a job stopped: the latest collectives of every rank.
  const distributed::WorldOptions world_options{.timeout_s = options.timeout,
                                                .dump_folder = options.out + "/flight"};
  const bool plans = Device::parse(options.device).is_meta();
  // In a shell that a launcher has started there may be one process all the same.
  check(!plans || !distributed::under_mpi() ||
            (options.backend == "fake" && distributed::launched_rank() == 0),
        "--device: meta plans for any number of ranks in one process; start it without a launcher, "
        "or alone with --backend fake");
  if (plans && ranks_of(options) > 1) {
    const auto world = distributed::fake_world(static_cast<int>(options.rank), ranks_of(options));
    Ranks ranks(*world, options);
    return f(&ranks);
  }
  if (options.backend == "mpi" || (options.backend == "auto" && distributed::under_mpi())) {
    check(options.ranks == 0,
          "--ranks: is for threads; the launcher has said how many ranks there are");
    return as_process(options, distributed::mpi_world(world_options), f);
  }
  if (options.ranks <= 1) {
    check(options.tp == 1 && options.ep == 1 && options.dp <= 1 && options.etp <= 1,
          "--ranks: one rank cannot share work among --dp {}, --tp {}, --ep {}, --etp {}; say how "
          "many there are",
          options.dp, options.tp, options.ep, options.etp);
    return f(nullptr);
  }
  std::atomic<int> status{0};
  distributed::run_ranks(
      static_cast<int>(options.ranks),
      [&](World& world) {
        Ranks ranks(world, options);
        const int own = f(&ranks);
        if (ranks.is_first()) status = own;
      },
      world_options);
  return status;
}

}  // namespace weft::train
