#include "weft/distributed/mpi_world.h"

#include <cstdlib>

#include "weft/core/error.h"

#if WEFT_WITH_MPI
#include <exception>

#include "weft/core/default_threads.h"
#include "weft/distributed/mpi_channel.h"
#endif

namespace weft::distributed {

int launched_rank() {
  // Open MPI, MPICH and Intel MPI, and srun with either of its two MPI plugins.
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  return -1;
}

int launched_ranks() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const char* ranks = std::getenv(name)) return std::atoi(ranks);
  return 1;
}

bool prints_for_all() {
  if (under_mpi()) return launched_rank() == 0;
  const char* const rank = std::getenv("SLURM_PROCID");
  return launched_ranks() <= 1 || !rank || std::atoi(rank) == 0;
}

bool under_mpi() { return launched_rank() >= 0; }

#if WEFT_WITH_MPI

namespace {

class MpiWorld : public World {
 public:
  MpiWorld(const std::shared_ptr<MpiJob>& job, const WorldOptions& options)
      : World(job->messages().rank(), job->messages().size(), options),
        job_(job),
        exceptions_(std::uncaught_exceptions()) {
    start(true, [job] { job->idle(); });
    job_->set_recorder(&recorder());
  }
  ~MpiWorld() override {
    if (ended_) return;
    if (std::uncaught_exceptions() > exceptions_) job_->give_up();
    end({});
  }
  void end_with_error(const std::string& error, const MpiJob::Print& print) {
    job_->give_up(error);
    end(print);
  }
  const char* backend() const override { return "mpi"; }
  std::string failure() const override { return job_->failure(); }
  void fail(const std::string& why) override { job_->fail_soon(why); }
  void set_answer(Answer answer) override { job_->set_answer(std::move(answer)); }
  std::vector<std::string> ask(const std::string& question) override {
    return job_->question_all(question);
  }
  std::int64_t bytes_moved() const { return job_->moved_bytes(); }

 protected:
  std::shared_ptr<Channel> open(const GroupCall& call) override {
    if (call.list < 0) return nullptr;
    return std::make_shared<MpiChannel>(call.name, call.ranks(), call.rank, job_, call.number);
  }

 private:
  void end(const MpiJob::Print& print) {
    ended_ = true;
    stop();
    try {
      job_->finish(print);
    } catch (const std::exception&) {
      job_->messages().doom();
    }
    job_->set_recorder(nullptr);
  }

  std::shared_ptr<MpiJob> job_;
  const int exceptions_;
  bool ended_ = false;
};

// For a rank without a world: the others may have theirs, or fail the same way.
void meet_and_end(const std::string& error, const MpiJob::Print& print) {
  const std::string line = message("rank {}: {}", launched_rank(), error);
  try {
    MpiJob job({.timeout_s = 10}, [&] { print(line); });
    // Ranks that MPI does not connect cannot meet, and all have the same error: see mpi_world().
    if (job.messages().size() < launched_ranks()) {
      if (prints_for_all()) print(error);
      return;
    }
    job.give_up(error);
    job.finish(print);
  } catch (const std::exception&) {
    print(line);
  }
}

}  // namespace

std::unique_ptr<World> mpi_world(const WorldOptions& options) {
  const auto job = std::make_shared<MpiJob>(options);
  // Each process would be rank 0 of a job of its own. More than the launcher says is harmless: a
  // launch in several parts knows its own part only.
  const int size = job->messages().size();
  check(size >= launched_ranks(),
        "mpi_world: the launcher started {} processes, and MPI connects {} of them; use the mpirun "
        "of the MPI library that the program is linked with, or srun with its plugin, such as "
        "--mpi=pmix",
        launched_ranks(), size);
  set_default_threads(job->messages().processors());
  return std::make_unique<MpiWorld>(job, options);
}

void end_with_error(std::unique_ptr<World> world, const std::string& error,
                    const std::function<void(const std::string&)>& print) {
  if (auto* const mpi = dynamic_cast<MpiWorld*>(world.get()))
    mpi->end_with_error(error, print);
  else if (!world && under_mpi())
    meet_and_end(error, print);
  else if (world || prints_for_all())
    print(error);
}

std::int64_t mpi_bytes_moved(const World& world) {
  const auto* const mpi = dynamic_cast<const MpiWorld*>(&world);
  check(mpi != nullptr, "mpi_bytes_moved: the world must be mpi_world()'s, got backend {}",
        world.backend());
  return mpi->bytes_moved();
}

#else

std::unique_ptr<World> mpi_world(const WorldOptions&) {
  throw Error("mpi_world: this library was built without MPI; configure it with -DWEFT_MPI=ON");
}

void end_with_error(std::unique_ptr<World>, const std::string& error,
                    const std::function<void(const std::string&)>& print) {
  if (prints_for_all()) print(error);  // the ranks cannot meet; all fail the same way
}

std::int64_t mpi_bytes_moved(const World& world) {
  throw Error(
      message("mpi_bytes_moved: the world must be mpi_world()'s, got backend {}", world.backend()));
}

#endif

}  // namespace weft::distributed
