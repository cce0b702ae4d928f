#include "weft/distributed/world.h"

#include <numeric>
#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/comm_thread.h"

namespace weft::distributed {

World::World(int rank, int size, const WorldOptions& options)
    : rank_(rank), size_(size), options_(options) {
  check(size >= 1 && rank >= 0 && rank < size, "world: rank must be below size {}, got {}", size,
        rank);
  // Clocks count nanoseconds in 64 bits (292 years), and a deadline is now() plus the timeout.
  check(options.timeout_s > 0 && options.timeout_s <= 1e8,
        "world: timeout_s must be above 0 and at most 1e8, got {}", options.timeout_s);
  check(options.last_resort_s > 0 && options.last_resort_s <= 1e8,
        "world: last_resort_s must be above 0 and at most 1e8, got {}", options.last_resort_s);
  check(options.link.bytes_per_s >= 0 && options.link.latency_s >= 0,
        "world: the link's bytes_per_s and latency_s must be at least 0, got {} and {}",
        options.link.bytes_per_s, options.link.latency_s);
}

World::~World() { stop(); }

void World::start(bool threaded, std::function<void()> idle) {
  thread_ = std::make_shared<CommThread>(rank_, size_, options_, threaded, std::move(idle));
  std::vector<int> everybody(static_cast<std::size_t>(size_));
  std::iota(everybody.begin(), everybody.end(), 0);
  all_ = group("world", everybody);
}

void World::stop() {
  if (thread_) thread_->stop();
}

std::shared_ptr<ProcessGroup> World::group(const std::string& name, const std::vector<int>& ranks) {
  return split(name, {ranks});
}

std::shared_ptr<ProcessGroup> World::split(const std::string& name, RankLists lists) {
  GroupCall call;
  call.name = name;
  call.number = groups_++;
  std::vector<bool> named(static_cast<std::size_t>(size_));
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const std::vector<int>& ranks = lists[i];
    check(!ranks.empty(), "group {}: needs at least one rank", name);
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      const int r = ranks[place];
      check(r >= 0 && r < size_, "group {}: ranks must be below {}, got {}", name, size_, r);
      check(!named[static_cast<std::size_t>(r)], "group {}: rank {} is named twice", name, r);
      named[static_cast<std::size_t>(r)] = true;
      if (r != rank_) continue;
      call.list = static_cast<int>(i);
      call.rank = static_cast<int>(place);
    }
  }
  call.lists = std::make_shared<const RankLists>(std::move(lists));
  auto channel = open(call);
  return call.list >= 0 ? std::make_shared<ProcessGroup>(std::move(channel), thread_) : nullptr;
}

CommStats World::stats() const { return thread_->stats(); }

void World::check_well() const {
  const std::string why = failure();
  check_system(why.empty(), "{}", why);
}

std::shared_ptr<FlightRecorder> World::shared_recorder() const { return thread_->recorder(); }

const FlightRecorder& World::recorder() const { return *thread_->recorder(); }

}  // namespace weft::distributed
