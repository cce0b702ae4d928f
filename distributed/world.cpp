#include "weft/distributed/world.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/comm_thread.h"

namespace weft::distributed {

World::World(int rank, int size, const WorldOptions& options)
    : rank_(rank),
      size_(size),
      options_(options),
      recorder_(std::make_shared<FlightRecorder>(options.recorded)) {
  check(size >= 1 && rank >= 0 && rank < size, "world: rank must be below size {}, got {}", size,
        rank);
  // Clocks count nanoseconds in 64 bits (292 years), and a deadline is now() plus the timeout.
  check(options.timeout_s > 0 && options.timeout_s <= 1e8,
        "world: timeout_s must be above 0 and at most 1e8, got {}", options.timeout_s);
  check(options.last_resort_s > 0 && options.last_resort_s <= 1e8,
        "world: last_resort_s must be above 0 and at most 1e8, got {}", options.last_resort_s);
  for (const SimulatedLink& link : {options.link, options.data_link.value_or(SimulatedLink{})})
    check(link.bytes_per_s >= 0 && link.latency_s >= 0,
          "world: the link's bytes_per_s and latency_s must be at least 0, got {} and {}",
          link.bytes_per_s, link.latency_s);
  check(options.lanes >= 1 && options.lanes <= kLanes, "world: lanes must be in [1, {}], got {}",
        kLanes, options.lanes);
}

World::~World() { stop(); }

void World::start(bool threaded, std::function<void()> idle) {
  for (int queue = 0; queue < (threaded ? options_.lanes : 1); ++queue)
    threads_.push_back(std::make_shared<CommThread>(rank_, size_, options_, recorder_, threaded,
                                                    std::exchange(idle, {})));
  std::vector<int> everybody(static_cast<std::size_t>(size_));
  std::iota(everybody.begin(), everybody.end(), 0);
  all_ = group("world", everybody);
}

void World::stop() {
  for (const auto& thread : threads_) thread->stop();
}

bool World::has_thrown() const {
  return std::any_of(threads_.begin(), threads_.end(),
                     [](const auto& t) { return t->has_thrown(); });
}

std::string World::unseen_failure() const {
  if (has_thrown()) return "";  // it was the failure of the job, in all lanes
  for (const auto& thread : threads_)
    if (std::string why = thread->failure(); !why.empty()) return why;
  return at_end_;
}

std::shared_ptr<ProcessGroup> World::group(const std::string& name, const std::vector<int>& ranks,
                                           Lane lane) {
  return split(name, {ranks}, lane);
}

std::shared_ptr<ProcessGroup> World::split(const std::string& name, RankLists lists, Lane lane) {
  GroupCall call;
  call.name = name;
  call.number = groups_++;
  call.lane = lane;
  call.queue = queue_of(lane, options_.lanes);
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
  if (call.list < 0) return nullptr;
  const auto& thread = threads_[static_cast<std::size_t>(call.queue) % threads_.size()];
  return std::make_shared<ProcessGroup>(std::move(channel), thread, lane);
}

CommStats World::stats(Lane lane) const {
  CommStats sum;
  for (const auto& thread : threads_) sum += thread->stats(lane);
  return sum;
}

CommStats World::stats() const {
  CommStats sum;
  for (int lane = 0; lane < kLanes; ++lane) sum += stats(static_cast<Lane>(lane));
  return sum;
}

void World::check_well() const {
  threads_[0]->for_program([this] {
    const std::string why = failure();
    check_system(why.empty(), "{}", why);
  });
}

}  // namespace weft::distributed
