// Products of groups of rows: one library call per group, spread over a few streams, since the
// product of one expert rarely fills a GPU.
#include "weft/core/kernels/grouped_linear.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "weft/core/cuda.h"
#include "weft/core/cuda_graph.h"

namespace weft::cuda {
namespace {

constexpr int kStreams = 4;  // including the caller's stream

// The side streams of a device, which all threads share: a process has few streams, and many ranks
// may be its threads. Work of two threads on one of them runs in the order of its submission. Never
// returned.
struct SideStreams {
  Stream streams[kStreams - 1];
  explicit SideStreams(Device d) : streams{Stream::take(d), Stream::take(d), Stream::take(d)} {}
};
const SideStreams& sides_of(Device device) {
  static std::mutex mutex;
  static SideStreams* all[kMaxDevices] = {};
  const std::lock_guard lock(mutex);
  SideStreams*& sides = all[device.index];
  if (!sides) sides = new SideStreams(device);
  return *sides;
}

// The events of one call. A stream keeps the wait for an event that was recorded before, so they
// can be reused at once.
struct ForkEvents {
  Device device;
  Event forked, joined[kStreams - 1];

  explicit ForkEvents(Device d) : device(d) {}
};

// Never destroyed, like the streams.
class Pool {
 public:
  static Pool& get() {
    static Pool* all = new Pool;
    return *all;
  }
  std::unique_ptr<ForkEvents> take(Device device) {
    const std::lock_guard lock(mutex_);
    for (std::unique_ptr<ForkEvents>& s : free_)
      if (s && s->device == device) return std::move(s);
    return std::make_unique<ForkEvents>(device);
  }
  void give(std::unique_ptr<ForkEvents> set) {
    const std::lock_guard lock(mutex_);
    for (std::unique_ptr<ForkEvents>& s : free_)
      if (!s) {
        s = std::move(set);
        return;
      }
    free_.push_back(std::move(set));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<ForkEvents>> free_;
};

// Side streams that have waited for `main`, which waits for them at the end: also when a product
// fails, since the memory of the operands is then free for the next use on `main`.
class Fork {
 public:
  Fork(const Stream& main, Device device, int sides)
      : main_(main), side_(sides_of(device).streams), sides_(sides) {
    events_ = Pool::get().take(device);
    events_->forked.record(main);
    for (int i = 0; i < sides; ++i) events_->forked.wait(side_[i]);
  }
  ~Fork() {
    try {
      join();
    } catch (...) {
      // The error that ended the scope is reported.
    }
  }
  Fork(const Fork&) = delete;
  const Stream& side(int i) const { return side_[i]; }
  void join() {
    if (!events_) return;
    std::unique_ptr<ForkEvents> events = std::move(events_);
    for (int i = 0; i < sides_; ++i) {
      events->joined[i].record(side_[i]);
      events->joined[i].wait(main_);
    }
    Pool::get().give(std::move(events));
  }

 private:
  const Stream main_;
  const Stream* const side_;
  const int sides_;
  std::unique_ptr<ForkEvents> events_;
};

Tensor from(const Tensor& t, std::int64_t offset) {
  return t.alias({t.numel() - offset}, {1}, offset);
}

}  // namespace

void grouped_gemm(const Tensor& a, const Tensor& b, GroupedProduct kind, const Tensor& rows,
                  bool accumulate, const Tensor& scratch, const Tensor& out) {
  const std::int64_t *n = rows.data<std::int64_t>(), groups = rows.numel();
  const GroupedWidths width(a, b, kind);
  std::int64_t busy = 0;
  for (std::int64_t e = 0; e < groups; ++e) busy += n[e] > 0;
  if (busy == 0) return;
  const Stream main = Stream::current(a.device());
  // A capture stays on its stream.
  const bool alone = Graph::capturing() != nullptr;
  const int sides = alone ? 0 : static_cast<int>(std::min<std::int64_t>(busy, kStreams)) - 1;
  std::optional<Fork> fork;
  if (sides > 0) fork.emplace(main, a.device(), sides);
  std::int64_t first = 0, index = 0;
  for (std::int64_t e = 0; e < groups; first += n[e++]) {
    if (n[e] == 0) continue;
    const GroupOperands g(kind, e, first, n[e], width.outputs, width.inputs, accumulate);
    const auto lane = static_cast<int>(index++ % (sides + 1));
    std::optional<StreamScope> scope;
    if (lane > 0) scope.emplace(fork->side(lane - 1));
    gemm(from(a, g.a), from(b, g.b), g.shape, scratch, from(out, g.out));
  }
  if (fork) fork->join();
}

}  // namespace weft::cuda
