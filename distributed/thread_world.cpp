#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/distributed/sum_ranks.h"
#include "weft/distributed/world.h"

namespace weft::distributed {
namespace {

/// What the threads of a job share: who is still there, and why it stopped.
class Job {
 public:
  explicit Job(int ranks) : ended_(static_cast<std::size_t>(ranks), false) {}

  std::mutex mutex;                 ///< of this and of all meetings
  std::condition_variable changed;  ///< somebody came, went or failed

  /// The following are called with the mutex held.
  void fail(const std::string& why) {
    if (why_.empty()) why_ = why;
    changed.notify_all();
  }
  void leave(int rank) {
    ended_[static_cast<std::size_t>(rank)] = true;
    changed.notify_all();
  }
  const std::string& why() const { return why_; }
  bool has_ended(int rank) const { return ended_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<bool> ended_;
  std::string why_;
};

/// Where the communication threads of one group's ranks meet and see each other's operations.
struct Meeting {
  explicit Meeting(int size)
      : here(static_cast<std::size_t>(size)),
        posts(static_cast<std::size_t>(size * size), nullptr) {}
  std::vector<const Operation*> here;
  int arrived = 0;
  std::uint64_t round = 0;
  std::vector<const Operation*> posts;  ///< [from * size + to], until the receiver has copied

  const Operation*& post(int from, int to) {
    return posts[static_cast<std::size_t>(from) * here.size() + static_cast<std::size_t>(to)];
  }
};

struct Shared {
  explicit Shared(int ranks) : job(ranks) {}
  Job job;
  std::map<int, std::shared_ptr<Meeting>> meetings;  // by number of the group() call
};

std::int64_t before(const std::vector<std::int64_t>& counts, int rank) {
  std::int64_t sum = 0;
  for (int r = 0; r < rank; ++r) sum += counts[static_cast<std::size_t>(r)];
  return sum;
}

class ThreadChannel : public Channel {
 public:
  ThreadChannel(const std::string& name, const std::vector<int>& ranks, int rank,
                std::shared_ptr<Shared> shared, std::shared_ptr<Meeting> meeting, double timeout_s)
      : Channel(name, ranks, rank),
        shared_(std::move(shared)),
        meeting_(std::move(meeting)),
        timeout_(timeout_s) {}

  void run(Operation& op) override {
    switch (op.kind) {
      case Collective::send:
        post(op);
        wait_taken(op);
        return;
      case Collective::receive:
        return take(op);
      case Collective::exchange:
        post(op);
        take(op);
        wait_taken(op);
        return;
      default:
        break;
    }
    come(op);
    check_same();
    move(op);
    leave(op);
  }

 private:
  const Operation& at(int r) const { return *meeting_->here[static_cast<std::size_t>(r)]; }

  /// All ranks compare the same pairs and come to the same verdict: nobody goes on to read what
  /// another one has let go.
  void check_same() const {
    const int last = at(0).kind == Collective::all_to_all ? size() : 1;
    for (int a = 0; a < last; ++a)
      for (int b = 0; b < size(); ++b)
        if (const std::string text = difference(at(a), a, at(b), b, *this); !text.empty())
          throw Error(text, Fault::system);
  }

  void move(Operation& op) {
    if (op.kind == Collective::barrier || op.out.is_meta()) return;
    const std::size_t width = size_of(op.dtype());
    const auto input = [&](int r, std::int64_t element) {
      return static_cast<const char*>(at(r).in.raw()) + element * static_cast<std::int64_t>(width);
    };
    const auto output = [&](int r, std::int64_t element) {
      return static_cast<char*>(at(r).out.raw()) + element * static_cast<std::int64_t>(width);
    };
    const auto copy = [&](void* to, const void* from, std::int64_t elements) {
      if (to != from && elements > 0)
        std::memcpy(to, from, static_cast<std::size_t>(elements) * width);
    };
    const auto combine = [&](void* to, std::int64_t first, std::int64_t elements) {
      std::vector<const void*> parts;
      for (int r = 0; r < size(); ++r) parts.push_back(input(r, first));
      combine_ranks(op.dtype(), op.reduce, to, parts, elements);
    };
    const auto count = [](const std::vector<std::int64_t>& c, int r) {
      return c[static_cast<std::size_t>(r)];
    };
    const std::int64_t own =
        before(op.in_count, rank() < static_cast<int>(op.in_count.size()) ? rank() : 0);
    switch (op.kind) {
      case Collective::all_reduce:
        // Each rank adds its share, into its own tensor, where nobody else reads that share ...
        combine(output(rank(), own), own, count(op.in_count, rank()));
        come(op);
        // ... and then takes the other shares from their owners.
        for (int r = 0; r < size(); ++r) {
          const std::int64_t first = before(op.in_count, r);
          copy(output(rank(), first), output(r, first), count(op.in_count, r));
        }
        return;
      case Collective::all_gather:
        for (int r = 0; r < size(); ++r)
          copy(output(rank(), before(op.out_count, r)), input(r, 0), count(op.out_count, r));
        return;
      case Collective::reduce_scatter:
        return combine(output(rank(), 0), own, count(op.in_count, rank()));
      case Collective::all_to_all:
        for (int r = 0; r < size(); ++r)
          copy(output(rank(), before(op.out_count, r)), input(r, before(at(r).in_count, rank())),
               count(op.out_count, r));
        return;
      case Collective::broadcast:
        return copy(output(rank(), 0), input(op.from, 0), op.out.numel());
      default:
        return;
    }
  }

  /// Waits, with the mutex held, until ready(); throws when a rank that is needed cannot come.
  template <class Ready, class Missing>
  void wait(std::unique_lock<std::mutex>& lock, const Operation& op, Ready ready, Missing missing) {
    Job& job = shared_->job;
    const auto deadline = std::chrono::steady_clock::now() +
                          std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                              std::chrono::duration<double>(timeout_));
    for (;;) {
      if (ready()) return;
      if (!job.why().empty()) throw Error(job.why(), Fault::system);
      const int absent = missing();  // a rank of the world
      if (absent >= 0 && job.has_ended(absent)) {
        job.fail(message("rank {} has ended, and rank {} waits for it in {}", absent,
                         ranks()[static_cast<std::size_t>(rank())], describe(op)));
        continue;
      }
      if (job.changed.wait_until(lock, deadline) == std::cv_status::timeout && !ready()) {
        job.fail(
            message("{}: rank {} did not come within {} s", describe(op), missing(), timeout_));
      }
    }
  }

  /// Everybody arrives, and sees everybody's operation; twice for one that needs it.
  void come(const Operation& op) {
    std::unique_lock lock(shared_->job.mutex);
    Meeting& m = *meeting_;
    m.here[static_cast<std::size_t>(rank())] = &op;
    const std::uint64_t round = m.round;
    if (++m.arrived == size()) {
      m.arrived = 0;
      ++m.round;
      shared_->job.changed.notify_all();
      return;
    }
    wait(
        lock, op, [&] { return m.round != round; },
        [&] {
          for (int r = 0; r < size(); ++r)
            if (m.here[static_cast<std::size_t>(r)] == nullptr)
              return ranks()[static_cast<std::size_t>(r)];
          return -1;
        });
  }

  /// Nobody goes before all have read: then a tensor may change again.
  void leave(const Operation& op) {
    come(op);
    const std::lock_guard lock(shared_->job.mutex);
    meeting_->here[static_cast<std::size_t>(rank())] = nullptr;
  }

  void post(const Operation& op) {
    std::unique_lock lock(shared_->job.mutex);
    const Operation*& slot = meeting_->post(rank(), op.to);
    wait(
        lock, op, [&] { return slot == nullptr; },
        [&] { return ranks()[static_cast<std::size_t>(op.to)]; });
    slot = &op;
    shared_->job.changed.notify_all();
  }

  void take(const Operation& op) {
    std::unique_lock lock(shared_->job.mutex);
    const Operation*& slot = meeting_->post(op.from, rank());
    wait(
        lock, op, [&] { return slot != nullptr; },
        [&] { return ranks()[static_cast<std::size_t>(op.from)]; });
    const Operation& sent = *slot;
    if (const std::string text = difference(sent, op.from, op, rank(), *this); !text.empty())
      throw Error(text, Fault::system);
    lock.unlock();
    if (!op.out.is_meta() && op.out.numel() > 0)
      std::memmove(op.out.raw(), sent.in.raw(),
                   static_cast<std::size_t>(op.out.numel()) * size_of(op.dtype()));
    lock.lock();
    slot = nullptr;
    shared_->job.changed.notify_all();
  }

  void wait_taken(const Operation& op) {
    std::unique_lock lock(shared_->job.mutex);
    wait(
        lock, op, [&] { return meeting_->post(rank(), op.to) != &op; },
        [&] { return ranks()[static_cast<std::size_t>(op.to)]; });
  }

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Meeting> meeting_;
  double timeout_;
};

class ThreadWorld : public World {
 public:
  ThreadWorld(int rank, int size, const WorldOptions& options, std::shared_ptr<Shared> shared)
      : World(rank, size, options), shared_(std::move(shared)) {
    start(true);
  }
  ~ThreadWorld() override { stop(); }
  /// Ends what is queued while this rank still counts as there.
  void finish() { stop(); }
  const char* backend() const override { return "thread"; }

 protected:
  std::shared_ptr<Channel> open(const std::string& name, const std::vector<int>& ranks,
                                int rank_in_group, int number) override {
    const std::lock_guard lock(shared_->job.mutex);
    std::shared_ptr<Meeting>& meeting = shared_->meetings[number];
    if (!meeting) meeting = std::make_shared<Meeting>(static_cast<int>(ranks.size()));
    return std::make_shared<ThreadChannel>(name, ranks, rank_in_group, shared_, meeting,
                                           options().timeout_s);
  }

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace

void run_ranks(int ranks, const std::function<void(World&)>& f, const WorldOptions& options) {
  check(ranks >= 1, "run_ranks: ranks must be at least 1, got {}", ranks);
  const auto shared = std::make_shared<Shared>(ranks);
  const int threads = std::max(1, num_threads() / ranks);
  std::mutex mutex;
  std::optional<Error> failure;
  const auto failed = [&](int rank, const std::string& what, Fault fault) {
    const std::string text = message("rank {}: {}", rank, what);
    const std::lock_guard lock(mutex);
    if (!failure) failure = Error(text, fault);
    const std::lock_guard job_lock(shared->job.mutex);
    shared->job.fail(text);
  };
  const auto body = [&](int rank) {
    const ThreadShare share(threads);
    std::optional<ThreadWorld> world;  // outlives the failure, which stops what is queued
    try {
      world.emplace(rank, ranks, options, shared);
      f(*world);
      world->finish();
    } catch (const Error& e) {
      failed(rank, e.what(), e.fault());
    } catch (const std::exception& e) {
      failed(rank, e.what(), Fault::system);
    }
    world.reset();
    const std::lock_guard lock(shared->job.mutex);
    shared->job.leave(rank);
  };
  std::vector<std::thread> others;
  for (int r = 1; r < ranks; ++r) others.emplace_back(body, r);
  body(0);
  for (std::thread& t : others) t.join();
  if (failure) throw *failure;
}

}  // namespace weft::distributed
