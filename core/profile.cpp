#include "weft/core/profile.h"

#include <chrono>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/core/kernel_timer.h"

namespace weft {

namespace {
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}
}  // namespace

struct Profiler::State {
  struct Call {
    const char* phase;
    std::int32_t scope;
    const char* op;  ///< null until the op that ran it is known
    const char* signature;
    KernelWork work;
    std::int32_t events;  ///< index of its pair of events; -1 on the CPU
  };
  struct Events {
    cuda::Event from{true}, to{true};
  };
  using Name = std::pair<std::int32_t, std::string>;  ///< parent, name

  /// Every span has at most a step's calls, so they are summed when it ends.
  void sum_up() {
    if (used_events > 0) cuda::Stream::current(gpu).synchronize();
    for (Call& c : calls) {
      if (c.events >= 0) c.work.seconds = milliseconds(c) * 1e-3;
      sums[{c.phase, c.scope, c.op ? c.op : "", c.signature}].add(c.work);
    }
    calls.clear();
    named = used_events = 0;
  }
  double milliseconds(const Call& c) const {
    const Events& e = events[static_cast<std::size_t>(c.events)];
    return e.to.since(e.from);
  }
  std::int32_t scope_id(std::int32_t parent, const char* name) {
    const auto [at, added] =
        scope_ids.try_emplace({parent, name}, static_cast<std::int32_t>(scopes.size()));
    if (added) scopes.push_back(&at->first);
    return at->second;
  }

  std::vector<Call> calls;
  std::size_t named = 0;        ///< calls before this one have their op
  double flops = 0, bytes = 0;  ///< for the next kernel
  bool in_kernel = false;
  std::vector<Events> events;
  std::int32_t used_events = 0;
  Device gpu;
  std::map<Name, std::int32_t> scope_ids;
  std::vector<const Name*> scopes{nullptr};
  using Key = std::tuple<std::string_view, std::int32_t, std::string_view, std::string_view>;
  std::map<Key, KernelWork> sums;
  const char* current_phase = "";
  Clock::time_point started, kernel_begins;
  double seconds = 0;
  std::int64_t spans = 0;
};

namespace detail {

constinit std::atomic<int> profilers{0};
constinit thread_local Profiler::State* running_profile = nullptr;
constinit thread_local std::int32_t current_scope = 0;

std::int32_t profile_scope() { return current_scope; }
void set_profile_scope(std::int32_t scope) { current_scope = scope; }

void add_kernel_work(double flops, double bytes) {
  if (Profiler::State* const s = running_profile; s && !s->in_kernel) {
    s->flops += flops;
    s->bytes += bytes;
  }
}

void end_profiled_op(const char* op) {
  Profiler::State* const s = running_profile;
  if (!s || s->in_kernel) return;
  for (; s->named < s->calls.size(); ++s->named) s->calls[s->named].op = op;
}

// A kernel that calls dispatch() is timed as one.
KernelTimer::KernelTimer(const char* signature, Device device, double bytes)
    : times_(running_profile && !running_profile->in_kernel) {
  if (!times_) return;
  Profiler::State& s = *running_profile;
  s.in_kernel = true;
  s.calls.push_back({.phase = s.current_phase,
                     .scope = current_scope,
                     .op = nullptr,
                     .signature = signature,
                     .work = {.calls = 1,
                              .seconds = 0,
                              .flops = std::exchange(s.flops, 0),
                              .bytes = bytes + std::exchange(s.bytes, 0)},
                     .events = -1});
  if (device.is_cuda()) {
    s.gpu = device;
    s.calls.back().events = s.used_events++;
    if (s.used_events > static_cast<std::int32_t>(s.events.size())) s.events.emplace_back();
    s.events[static_cast<std::size_t>(s.used_events - 1)].from.record(
        cuda::Stream::current(device));
  }
  s.kernel_begins = Clock::now();
}

KernelTimer::~KernelTimer() {
  if (times_) {  // the kernel threw
    running_profile->calls.pop_back();
    running_profile->in_kernel = false;
  }
}

void KernelTimer::done() {
  if (!std::exchange(times_, false)) return;
  Profiler::State& s = *running_profile;
  Profiler::State::Call& c = s.calls.back();
  c.work.seconds = seconds_since(s.kernel_begins);
  if (c.events >= 0)
    s.events[static_cast<std::size_t>(c.events)].to.record(cuda::Stream::current(s.gpu));
  s.in_kernel = false;
}

}  // namespace detail

Profiler::Profiler() : state_(std::make_unique<State>()) {}
Profiler::~Profiler() {
  if (running()) stop();
}

bool Profiler::running() const { return detail::running_profile == state_.get(); }

void Profiler::start(const char* phase) {
  check(!detail::running_profile, "profiler: this thread must have no running profiler, has one");
  state_->current_phase = phase;
  state_->started = Clock::now();
  detail::running_profile = state_.get();
  detail::profilers.fetch_add(1, std::memory_order_relaxed);
}

void Profiler::phase(const char* phase) {
  state_->named = state_->calls.size();  // what follows a recorded op is not part of it
  state_->current_phase = phase;
}

void Profiler::stop() {
  check(running(), "profiler: must be running on this thread");
  detail::profilers.fetch_sub(1, std::memory_order_relaxed);
  detail::running_profile = nullptr;
  state_->sum_up();
  state_->seconds += seconds_since(state_->started);
  ++state_->spans;
}

double Profiler::seconds() const { return state_->seconds; }
std::int64_t Profiler::spans() const { return state_->spans; }

std::vector<Profiler::Entry> Profiler::entries() const {
  std::vector<Entry> all;
  for (const auto& [key, sums] : state_->sums) {
    const auto& [phase, scope, op, signature] = key;
    // "... [with auto Kernel = weft::cpu::softmax_fwd; ...]"
    std::string_view kernel = signature.substr(signature.find("Kernel = ") + 9);
    kernel = kernel.substr(0, kernel.find_first_of(";,]"));
    kernel = kernel.substr(kernel.rfind(':') + 1);
    Entry entry{.phase = std::string(phase),
                .scopes = {},
                .op = std::string(op),
                .kernel = std::string(kernel),
                .work = sums};
    for (std::int32_t s = scope; s > 0; s = state_->scopes[static_cast<std::size_t>(s)]->first)
      entry.scopes.insert(entry.scopes.begin(),
                          state_->scopes[static_cast<std::size_t>(s)]->second);
    all.push_back(std::move(entry));
  }
  return all;
}

ProfileScope::ProfileScope(const char* name) : previous_(detail::current_scope) {
  if (!detail::profiling()) return;
  if (Profiler::State* const s = detail::running_profile)
    detail::current_scope = s->scope_id(previous_, name);
}

ProfileScope::~ProfileScope() { detail::current_scope = previous_; }

}  // namespace weft
