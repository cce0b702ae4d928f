#include "weft/distributed/world.h"

#include <algorithm>
#include <numeric>

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
  check(!ranks.empty(), "group {}: needs at least one rank", name);
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    check(sorted[i] >= 0 && sorted[i] < size_, "group {}: ranks must be below {}, got {}", name,
          size_, sorted[i]);
    check(i == 0 || sorted[i] != sorted[i - 1], "group {}: rank {} is named twice", name,
          sorted[i]);
  }
  const int number = groups_++;
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  const bool member = place != ranks.end();
  auto channel = open(name, ranks, member ? static_cast<int>(place - ranks.begin()) : -1, number);
  return member ? std::make_shared<ProcessGroup>(std::move(channel), thread_) : nullptr;
}

CommStats World::stats() const { return thread_->stats(); }

void World::check_well() const {
  const std::string why = failure();
  check_system(why.empty(), "{}", why);
}

std::shared_ptr<FlightRecorder> World::shared_recorder() const { return thread_->recorder(); }

const FlightRecorder& World::recorder() const { return *thread_->recorder(); }

}  // namespace weft::distributed
