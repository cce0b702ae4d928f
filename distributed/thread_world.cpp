#include <algorithm>
#include <optional>
#include <system_error>
#include <thread>

#include "weft/core/memory_domain.h"
#include "weft/core/parallel.h"
#include "weft/core/random.h"
#include "weft/distributed/comm_thread.h"
#include "weft/distributed/thread_channel.h"

namespace weft::distributed {
namespace {

class ThreadWorld : public World {
 public:
  ThreadWorld(int rank, int size, WorldOptions options, std::shared_ptr<Job> job)
      : World(rank, size, without_dumps(std::move(options))), job_(std::move(job)) {
    start(true);
  }
  ~ThreadWorld() override { stop(); }
  /// Completes the queued collectives while this rank still counts as present. Throws Error when
  /// one has failed whose Work was dropped without wait().
  void finish() {
    stop();
    const std::string why = unseen_failure();
    check_system(why.empty(), "{}", why);
  }
  const char* backend() const override { return "thread"; }
  std::string failure() const override {
    return job_->failed() ? std::string(job_->failure().what()) : std::string();
  }
  void fail(const std::string& why) override { job_->fail(why, Fault::system); }
  void set_answer(Answer answer) override { job_->set_answer(rank(), std::move(answer)); }
  std::vector<std::string> ask(const std::string& question) override { return job_->ask(question); }

 protected:
  std::shared_ptr<Channel> open(const GroupCall& call) override {
    if (call.number == 0) job_->add_recorder(rank(), shared_recorder());
    auto rendezvous = job_->rendezvous(rank(), call);
    if (!rendezvous) return nullptr;
    return std::make_shared<ThreadChannel>(call.name, call.ranks(), call.rank, job_,
                                           std::move(rendezvous));
  }

 private:
  // The job writes the dumps of all ranks at once, including ranks that never notice the failure.
  static WorldOptions without_dumps(WorldOptions options) {
    options.dump_folder.clear();
    return options;
  }
  const std::shared_ptr<Job> job_;
};

}  // namespace

void run_ranks(int ranks, const std::function<void(World&)>& f, const WorldOptions& options) {
  check(ranks >= 1, "run_ranks: ranks must be at least 1, got {}", ranks);
  const auto job = std::make_shared<Job>(ranks, options);
  const int threads = std::max(1, num_threads() / ranks);
  RandomSnapshot start;
  start.seed = RandomSnapshot::take().seed;
  std::atomic<bool> thrown{false};
  const auto failed = [&](int rank, const std::string& what, Fault fault) {
    // After a failed collective every rank throws the job's failure: that is no failure of its own.
    if (!job->failed() || what != job->failure().what())
      job->fail(message("rank {}: {}", rank, what), fault);
    thrown = true;
  };
  const auto body = [&](int rank) {
    const ThreadLimit share(threads);
    const MemoryDomain domain(rank);
    // All ranks start from the same random state, as separate processes do.
    const RandomReplay draws(start);
    std::optional<ThreadWorld> world;  // outlives the failure, which stops queued collectives
    try {
      world.emplace(rank, ranks, options, job);
      f(*world);
      world->finish();
    } catch (const Error& e) {
      failed(rank, e.what(), e.fault());
    } catch (const std::exception& e) {
      failed(rank, e.what(), Fault::system);
    } catch (...) {
      failed(rank, "stopped by an exception that is no std::exception", Fault::system);
    }
    world.reset();
    job->leave(rank);
  };
  std::vector<std::thread> all;
  for (int r = 0; r < ranks; ++r) {
    try {
      all.emplace_back(body, r);
    } catch (const std::system_error&) {
      failed(r, message("the system has no thread for it; {} ranks are too many", ranks),
             Fault::system);
      for (; r < ranks; ++r) job->leave(r);
    }
  }
  for (std::thread& t : all) t.join();
  if (thrown) throw job->failure();
}

}  // namespace weft::distributed
