#include "weft/core/profile.h"

#include <chrono>
#include <map>
#include <set>
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

/// The scopes of a thread. It only grows: tapes keep numbers of scopes.
class ProfileScopes {
 public:
  static const std::shared_ptr<ProfileScopes>& of_thread() {
    static thread_local const auto table = std::make_shared<ProfileScopes>();
    return table;
  }
  std::int32_t number(std::int32_t parent, const char* name) {
    const auto [at, added] =
        numbers_.try_emplace({parent, name}, static_cast<std::int32_t>(names_.size()));
    if (added) names_.push_back(&at->first);
    return at->second;
  }
  /// Outermost first.
  std::vector<std::string> path(std::int32_t scope) const {
    std::vector<std::string> path;
    while (scope > 0) {
      const auto& [parent, name] = *names_[static_cast<std::size_t>(scope)];
      path.insert(path.begin(), name);
      scope = parent;
    }
    return path;
  }

 private:
  using Name = std::pair<std::int32_t, std::string>;  ///< parent, name
  std::map<Name, std::int32_t> numbers_;
  std::vector<const Name*> names_{nullptr};
};

struct Profiler::State {
  struct Call {
    const char* phase;
    std::int32_t scope;
    const char* op;  ///< null until the op that ran it is known
    const char* signature;
    const std::string* operands;
    KernelWork work;
    std::int32_t events;  ///< index of its pair of events; -1 on the CPU
  };
  struct Events {
    cuda::Event from{true}, to{true};
  };
  void sum_up() {
    for (Call& c : std::exchange(calls, {})) {
      if (c.events >= 0) {
        const Events& e = events[static_cast<std::size_t>(c.events)];
        c.work.seconds = e.to.since(e.from) * 1e-3;
      }
      sums[{c.phase, c.scope, c.op ? c.op : "", c.signature, *c.operands}].add(c.work);
    }
  }
  void clear_span() {
    calls.clear();
    named = 0;
    used_events = 0;
    in_kernel = false;
    forget_work();
  }
  void forget_work() { flops = bytes = 0; }

  std::vector<Call> calls;
  std::size_t named = 0;        ///< calls before this one have their op
  double flops = 0, bytes = 0;  ///< for the next kernel
  std::int64_t launches = 0;    ///< of the current one
  bool in_kernel = false;
  std::vector<Events> events;
  std::int32_t used_events = 0;
  Device gpu;
  std::shared_ptr<ProfileScopes> scopes = ProfileScopes::of_thread();
  bool by_operands = false;
  std::set<std::string> operands{""};
  using Key = std::tuple<std::string_view, std::int32_t, std::string_view, std::string_view,
                         std::string_view>;
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

void add_kernel_launch() {
  if (running_profile) ++running_profile->launches;
}

void add_operand(std::string& names, const Tensor& t) {
  if (!t.defined()) return;
  names += name(t.dtype());
  for (int i = 0; i < t.ndim(); ++i) {
    names += i == 0 ? ' ' : 'x';
    names += std::to_string(t.dim(i));
  }
  const int n = t.ndim();
  if (n >= 2 && t.dim(n - 1) > 1 && t.strides()[n - 1] > t.strides()[n - 2]) names += 't';
  names += ", ";
}

void end_profiled_op(const char* op) {
  Profiler::State* const s = running_profile;
  if (!s || s->in_kernel) return;
  for (; s->named < s->calls.size(); ++s->named) s->calls[s->named].op = op;
  s->forget_work();  // of a kernel that was skipped, or did not run
}

// A kernel that calls dispatch() is timed as one.
KernelTimer::KernelTimer(const char* signature, Device device, double bytes)
    : times_(running_profile && !running_profile->in_kernel), computes_(!device.is_meta()) {
  if (!times_) return;
  Profiler::State& s = *running_profile;
  std::int32_t events = -1;
  if (device.is_cuda()) {
    s.gpu = device;
    events = s.used_events;
    if (events == static_cast<std::int32_t>(s.events.size())) s.events.emplace_back();
    s.events[static_cast<std::size_t>(events)].from.record(cuda::Stream::current(device));
    ++s.used_events;
  }
  s.calls.push_back({.phase = s.current_phase,
                     .scope = current_scope,
                     .op = nullptr,
                     .signature = signature,
                     .operands = &*s.operands.begin(),
                     .work = {.calls = 1,
                              .seconds = 0,
                              .flops = std::exchange(s.flops, 0),
                              .bytes = bytes + std::exchange(s.bytes, 0),
                              .launches = 0},
                     .events = events});
  s.in_kernel = true;
  s.launches = 0;
  s.kernel_begins = Clock::now();
}

KernelTimer::~KernelTimer() {
  if (times_) {  // the kernel threw
    running_profile->calls.pop_back();
    running_profile->in_kernel = false;
  }
}

bool KernelTimer::wants_operands() const { return times_ && running_profile->by_operands; }

void KernelTimer::set_operands(const std::string& names) {
  Profiler::State& s = *running_profile;
  const std::size_t end = names.empty() ? 0 : names.size() - 2;  // without the last ", "
  s.calls.back().operands = &*s.operands.insert(names.substr(0, end)).first;
}

void KernelTimer::done() {
  if (!times_) return;
  Profiler::State& s = *running_profile;
  Profiler::State::Call& c = s.calls.back();
  if (computes_) c.work.seconds = seconds_since(s.kernel_begins);
  c.work.launches = s.launches;
  if (c.events >= 0)
    s.events[static_cast<std::size_t>(c.events)].to.record(cuda::Stream::current(s.gpu));
  s.in_kernel = false;
  times_ = false;
}

}  // namespace detail

Profiler::Profiler(bool by_operands) : state_(std::make_unique<State>()) {
  state_->by_operands = by_operands;
}
Profiler::~Profiler() {
  if (running()) discard();
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
  state_->forget_work();
  state_->current_phase = phase;
}

void Profiler::stop() {
  check(running(), "profiler: must be running on this thread");
  State& s = *state_;
  struct Cleared {  // also when the GPU reports a fault
    Profiler& profiler;
    ~Cleared() { profiler.discard(); }
  } const cleared{*this};
  s.in_kernel = true;  // an emulated GPU computes while the host waits
  if (s.used_events > 0) cuda::Stream::current(s.gpu).synchronize();
  const double seconds = seconds_since(s.started);
  s.sum_up();
  s.seconds += seconds;
  ++s.spans;
}

void Profiler::discard() {
  if (running()) {
    detail::profilers.fetch_sub(1, std::memory_order_relaxed);
    detail::running_profile = nullptr;
  }
  state_->clear_span();
}

double Profiler::seconds() const { return state_->seconds; }
std::int64_t Profiler::spans() const { return state_->spans; }

std::vector<Profiler::Entry> Profiler::entries() const {
  std::vector<Entry> all;
  for (const auto& [key, sums] : state_->sums) {
    const auto& [phase, scope, op, signature, operands] = key;
    // "... [with auto Kernel = weft::cpu::softmax_fwd; ...]"
    std::string_view kernel = signature.substr(signature.find("Kernel = ") + 9);
    kernel = kernel.substr(0, kernel.find_first_of(";,]"));
    kernel = kernel.substr(kernel.rfind(':') + 1);
    all.push_back({.phase = std::string(phase),
                   .scopes = state_->scopes->path(scope),
                   .op = std::string(op),
                   .kernel = std::string(kernel),
                   .work = sums,
                   .operands = std::string(operands)});
  }
  return all;
}

ProfileScope::ProfileScope(const char* name) : previous_(detail::current_scope) {
  if (!detail::profiling()) return;
  if (const Profiler::State* const s = detail::running_profile)
    detail::current_scope = s->scopes->number(previous_, name);
}

ProfileScope::~ProfileScope() { detail::current_scope = previous_; }

std::int32_t ProfileScope::current() { return detail::current_scope; }

std::vector<std::string> ProfileScope::path(std::int32_t number) {
  return ProfileScopes::of_thread()->path(number);
}

}  // namespace weft
