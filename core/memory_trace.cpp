#include "weft/core/memory_trace.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "weft/core/error.h"
#include "weft/core/profile.h"
#include "weft/core/storage.h"

namespace weft {

struct MemoryTrace::State {
  struct Event {
    std::int32_t block;
    bool frees;
  };
  void apply(const Event& e, LiveBytes& live) const {
    const Block& b = blocks[static_cast<std::size_t>(e.block)];
    live.by_category[static_cast<int>(b.category)] += e.frees ? -b.bytes : b.bytes;
  }
  // f(event number, live bytes before it), up to and including the end.
  template <class F>
  void replay(std::int64_t begin, const F& f) const {
    LiveBytes live;
    for (std::int64_t i = 0; i < std::ssize(events); ++i) {
      if (i >= begin) f(i, live);
      apply(events[static_cast<std::size_t>(i)], live);
    }
    f(std::ssize(events), live);
  }

  std::vector<Device> devices;
  std::vector<Block> blocks;
  std::vector<Event> events;
  std::unordered_map<const Storage*, std::int32_t> numbers;  ///< of live blocks
};

namespace detail {

constinit std::atomic<int> block_watchers{0};

namespace {
constinit thread_local MemoryTrace::State* block_trace = nullptr;
constinit thread_local bool untraced = false;
}  // namespace

void trace_allocated(const Storage& s) {
  MemoryTrace::State* const t = block_trace;
  if (!t || untraced ||
      std::find(t->devices.begin(), t->devices.end(), s.device) == t->devices.end())
    return;
  const auto number = static_cast<std::int32_t>(t->blocks.size());
  t->blocks.push_back({s.capacity, s.category, ProfileScope::current()});
  t->events.push_back({number, false});
  t->numbers[&s] = number;
}

void trace_freed(const Storage& s) {
  MemoryTrace::State* const t = block_trace;
  if (!t) return;
  const auto found = t->numbers.find(&s);
  if (found == t->numbers.end()) return;
  t->events.push_back({found->second, true});
  t->numbers.erase(found);
}

}  // namespace detail

std::int64_t LiveBytes::total() const {
  return std::accumulate(std::begin(by_category), std::end(by_category), std::int64_t{0});
}

UntracedScope::UntracedScope() : previous_(std::exchange(detail::untraced, true)) {}
UntracedScope::~UntracedScope() { detail::untraced = previous_; }

MemoryTrace::MemoryTrace(std::vector<Device> devices) : state_(std::make_unique<State>()) {
  check(!detail::block_trace, "memory trace: this thread must have no other trace, has one");
  state_->devices = std::move(devices);
  detail::block_trace = state_.get();
  detail::block_watchers.fetch_add(detail::kTracedBlocks, std::memory_order_relaxed);
}

MemoryTrace::~MemoryTrace() {
  detail::block_watchers.fetch_sub(detail::kTracedBlocks, std::memory_order_relaxed);
  detail::block_trace = nullptr;
}

std::int64_t MemoryTrace::events() const { return std::ssize(state_->events); }

const std::vector<MemoryTrace::Block>& MemoryTrace::blocks() const { return state_->blocks; }

std::vector<LiveBytes> MemoryTrace::course(std::int64_t begin) const {
  std::vector<LiveBytes> all;
  state_->replay(begin, [&](std::int64_t, const LiveBytes& live) { all.push_back(live); });
  return all;
}

MemoryTrace::Peak MemoryTrace::peak(std::int64_t begin) const {
  Peak peak;
  std::int64_t most = -1;
  state_->replay(begin, [&](std::int64_t event, const LiveBytes& live) {
    if (live.total() <= most) return;
    most = live.total();
    peak.event = event;
    peak.live = live;
  });
  std::vector<bool> is_live(state_->blocks.size());
  for (std::int64_t i = 0; i < peak.event; ++i) {
    const State::Event& e = state_->events[static_cast<std::size_t>(i)];
    is_live[static_cast<std::size_t>(e.block)] = !e.frees;
  }
  for (std::size_t i = 0; i < is_live.size(); ++i)
    if (is_live[i]) peak.blocks.push_back(state_->blocks[i]);
  return peak;
}

std::vector<std::string> MemoryTrace::scopes_of(const Block& block) {
  return ProfileScope::path(block.scope);
}

}  // namespace weft
