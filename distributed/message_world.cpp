#include "weft/distributed/message_world.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "weft/core/default_threads.h"
#include "weft/core/error.h"
#include "weft/distributed/launcher.h"
#include "weft/distributed/message_channel.h"
#include "weft/distributed/mpi_world.h"
#include "weft/distributed/tcp_messages.h"
#include "weft/distributed/tcp_world.h"

namespace weft::distributed {
namespace {

// For a failure that a destructor finds.
void end_process_with_failure() {
  [[maybe_unused]] static const int registered = std::atexit([] {
    std::fflush(nullptr);
    std::_Exit(EXIT_FAILURE);
  });
}

class MessageWorld : public World {
 public:
  MessageWorld(const char* backend, const std::shared_ptr<MessageJob>& job,
               const WorldOptions& options)
      : World(job->messages().rank(), job->messages().size(), options),
        backend_(backend),
        job_(job),
        exceptions_(std::uncaught_exceptions()) {
    start(true, [job] { job->idle(); });
    job_->set_recorder(&recorder());
  }
  ~MessageWorld() override {
    if (ended_) return;
    const bool unwinds = std::uncaught_exceptions() > exceptions_;
    if (unwinds) job_->give_up();  // collectives in the queue are not waited for
    stop();
    // A collective failed whose Work was dropped without wait(): no exception has told the program.
    const std::string why = unwinds ? std::string() : unseen_failure();
    if (why.empty()) {
      end({});
      return;
    }
    job_->give_up(why);
    end([](const std::string& line) { std::fprintf(stderr, "error: %s\n", line.c_str()); });
    if (!under_mpi()) end_process_with_failure();  // MPI ends the process of a failed job
  }
  void end_with_error(const std::string& error, const MessageJob::Print& print) {
    job_->give_up(error);
    end(print);
  }
  const char* backend() const override { return backend_; }
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
    return std::make_shared<MessageChannel>(call, job_);
  }

 private:
  void end(const MessageJob::Print& print) {
    ended_ = true;
    stop();
    try {
      job_->finish(print);
    } catch (const std::exception&) {
      job_->messages().doom();
    }
    job_->set_recorder(nullptr);
  }

  const char* const backend_;
  std::shared_ptr<MessageJob> job_;
  const int exceptions_;
  bool ended_ = false;
};

// For a rank without a world: the others may have theirs, or fail the same way.
void meet_and_end(const std::string& error, const MessageJob::Print& print) {
  const std::string line = message("rank {}: {}", launched_rank(), error);
  constexpr double kSeconds = 10;
  try {
    std::unique_ptr<Messages> messages;
    if (under_mpi())
      messages = mpi_messages(kSeconds, [&] { print(line); });
    else
      messages = std::make_unique<TcpMessages>(tcp_place(), kSeconds);
    MessageJob job(std::move(messages), {.timeout_s = kSeconds});
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

bool can_meet() { return under_mpi() ? has_mpi() : under_tcp() && !has_tried_to_connect(); }

}  // namespace

std::unique_ptr<World> message_world(const char* backend, std::unique_ptr<Messages> messages,
                                     const WorldOptions& options) {
  set_default_threads(messages->processors());
  const auto job = std::make_shared<MessageJob>(std::move(messages), options);
  return std::make_unique<MessageWorld>(backend, job, options);
}

std::unique_ptr<World> world_of_launch(const WorldOptions& options) {
  return under_mpi() ? mpi_world(options) : tcp_world(options);
}

void end_with_error(std::unique_ptr<World> world, const std::string& error,
                    const std::function<void(const std::string&)>& print) {
  if (auto* const processes = dynamic_cast<MessageWorld*>(world.get()))
    processes->end_with_error(error, print);
  else if (!world && can_meet())
    meet_and_end(error, print);
  else if (!world && has_tried_to_connect())  // it has not found the others, or they refused it
    print(message("rank {}: {}", launched_rank(), error));
  else if (world || prints_for_all())
    print(error);
}

std::int64_t bytes_moved(const World& world) {
  const auto* const processes = dynamic_cast<const MessageWorld*>(&world);
  check(processes != nullptr,
        "bytes_moved: the ranks of the world must be processes, got backend {}", world.backend());
  return processes->bytes_moved();
}

}  // namespace weft::distributed
