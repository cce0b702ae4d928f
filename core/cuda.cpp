#include "weft/core/cuda.h"

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "weft/core/allocator.h"
#include "weft/core/cuda_graph.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/core/staging.h"

namespace weft::cuda {
namespace {

struct StreamSlot {
  std::int16_t device = 0;
  bool taken = false;
  Priority priority = Priority::normal;
  void* handle = nullptr;
};

// Never destroyed, like the memory caches that belong to the streams.
struct Registry {
  std::mutex mutex;
  std::vector<StreamSlot> streams;  // its capacity is fixed: readers need no lock
  std::int16_t first_of[kMaxDevices];
  std::string why;
  int devices = 0;
  std::atomic<detail::IndexFault*> faults[kMaxDevices] = {};

  Registry() {
    streams.reserve(kMaxStreams);
    for (std::int16_t& id : first_of) id = -1;
    if constexpr (kWithCuda)
      devices = std::min(rt::device_count(why), kMaxDevices);
    else
      why = "this build of Weft has no CUDA";
  }
};
Registry& registry() {
  static Registry* r = new Registry;
  return *r;
}

std::atomic<std::int64_t> sync_count{0};
std::atomic<bool> tf32{false};
constinit thread_local bool tf32_forbidden = false;
constinit thread_local std::int16_t current_of[kMaxDevices] = {-1, -1, -1, -1, -1, -1, -1, -1,
                                                               -1, -1, -1, -1, -1, -1, -1, -1};

std::int16_t add_stream(Registry& r, std::int16_t device, Priority priority) {
  check(r.streams.size() < kMaxStreams, "stream: at most {} can exist, got a request for one more",
        kMaxStreams);
  detail::use_device(device);
  StreamSlot slot{device, true, priority, nullptr};
  if constexpr (kWithCuda) slot.handle = rt::create_stream(priority == Priority::high);
  r.streams.push_back(slot);
  return static_cast<std::int16_t>(r.streams.size() - 1);
}

std::int16_t default_stream(Device device) {
  check_device(device);
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  std::int16_t& id = r.first_of[device.index];
  if (id < 0) id = add_stream(r, device.index, Priority::normal);
  return id;
}

// Throws the error that a kernel of the device has reported. Reads only what was written before.
void check_fault(int device) {
  detail::IndexFault* const f = registry().faults[device].load(std::memory_order_acquire);
  if (!f) return;
  const std::atomic_ref set(f->set);
  if (set.load(std::memory_order_acquire) != detail::IndexFault::complete) return;
  const detail::IndexFault seen = *f;
  set.store(detail::IndexFault::none, std::memory_order_release);  // last: the next may report
  check(!seen.may_ignore, "{}: {} must be in [0, {}) or ignore_index {}, got {}", seen.op,
        seen.label, seen.limit, seen.ignored, seen.value);
  check(false, "{}: {} must be in [0, {}), got {}", seen.op, seen.label, seen.limit, seen.value);
}

void refuse_waiting() {
  detail::refuse_in_capture(
      "graph: the host cannot wait inside a capture, since nothing runs before replay(); wait "
      "after "
      "it");
}

void refuse_reading() {
  detail::refuse_in_capture(
      "graph: no value can be read inside a capture, since nothing runs before replay(); read it "
      "after that");
}

void refuse_other_streams() {
  detail::refuse_in_capture(
      "graph: a capture must stay on its first stream; change streams before or after it");
}

void* pinned(std::size_t bytes) {
  void* p = nullptr;
  if constexpr (kWithCuda) p = rt::allocate_pinned(static_cast<std::int64_t>(bytes));
  check_system(p != nullptr, "cuda: the system has no memory to pin for {} bytes", bytes);
  return p;
}

// Called after the host has waited for a device.
void waited(int device) {
  sync_count.fetch_add(1, std::memory_order_relaxed);
  check_fault(device);
}

}  // namespace

int device_count() { return registry().devices; }

void check_device(Device device) {
  const Registry& r = registry();
  check(device.is_cuda(), "device: must be a GPU, got {}", device);
  if (r.devices == 0)
    weft::detail::raise(Fault::user, "device: {} cannot be used: {}", {device, r.why});
  check(device.index >= 0 && device.index < r.devices,
        "device: the index of {} must be below the number of GPUs {}, got {}", device, r.devices,
        device.index);
}

std::int64_t total_memory(Device device) {
  check_device(device);
  if constexpr (kWithCuda) return rt::total_memory(device.index);
  return 0;
}

void synchronize(Device device) {
  check_device(device);
  refuse_waiting();
  detail::use_device(device.index);
  if constexpr (kWithCuda) rt::synchronize_device();
  waited(device.index);
}

std::int64_t host_syncs() { return sync_count.load(std::memory_order_relaxed); }

void allow_tf32(bool on) { tf32 = on; }
bool tf32_allowed() { return tf32 && !tf32_forbidden; }

NoTf32Scope::NoTf32Scope() : previous_(std::exchange(tf32_forbidden, true)) {}
NoTf32Scope::~NoTf32Scope() { tf32_forbidden = previous_; }

Stream::Stream(Device device) : device_(device.index), id_(default_stream(device)) {}

Stream Stream::take(Device device, Priority priority) {
  check_device(device);
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  for (std::size_t i = 0; i < r.streams.size(); ++i) {
    StreamSlot& slot = r.streams[i];
    if (slot.taken || slot.device != device.index || slot.priority != priority) continue;
    slot.taken = true;
    return {device.index, static_cast<std::int16_t>(i)};
  }
  return {device.index, add_stream(r, device.index, priority)};
}

void Stream::give_back() {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  check(r.first_of[device_] != id_,
        "give_back: the stream must not be a default stream, got that of cuda:{}", device_);
  r.streams[static_cast<std::size_t>(id_)].taken = false;
}

Stream Stream::current(Device device) {
  check(device.index >= 0 && device.index < kMaxDevices, "device: index must be in [0, {}), got {}",
        kMaxDevices, device.index);
  check(device.is_cuda(), "device: must be a GPU, got {}", device);
  std::int16_t& id = current_of[device.index];
  if (id < 0) id = default_stream(device);
  return {device.index, id};
}

Stream Stream::of_id(int id) {
  return {registry().streams[static_cast<std::size_t>(id)].device, static_cast<std::int16_t>(id)};
}

void* Stream::handle() const { return registry().streams[static_cast<std::size_t>(id_)].handle; }

void Stream::synchronize() const {
  refuse_waiting();
  detail::use_device(device_);
  if constexpr (kWithCuda) rt::synchronize_stream(handle());
  waited(device_);
}

StreamScope::StreamScope(const Stream& stream) : previous_(Stream::current(stream.device())) {
  refuse_other_streams();
  current_of[stream.device().index] = static_cast<std::int16_t>(stream.id());
}
StreamScope::~StreamScope() {
  current_of[previous_.device().index] = static_cast<std::int16_t>(previous_.id());
}

Event::Event(Event&& o) noexcept
    : handle_(std::exchange(o.handle_, nullptr)), device_(o.device_), timing_(o.timing_) {}
Event& Event::operator=(Event&& o) noexcept {
  std::swap(handle_, o.handle_);
  std::swap(device_, o.device_);
  std::swap(timing_, o.timing_);
  return *this;
}
Event::~Event() {
  if constexpr (kWithCuda)
    if (handle_) rt::destroy_event(handle_);
}
void Event::record(const Stream& stream) {
  detail::refuse_in_capture(
      "graph: an event cannot be recorded inside a capture; record it after replay()");
  detail::use_device(stream.device().index);
  if constexpr (kWithCuda) {
    if (handle_ && device_ != stream.device().index)
      rt::destroy_event(std::exchange(handle_, nullptr));
    if (!handle_) handle_ = rt::create_event(timing_);
    device_ = stream.device().index;
    rt::record_event(handle_, stream.handle());
  }
}
void Event::wait(const Stream& stream) const {
  refuse_other_streams();
  detail::use_device(stream.device().index);
  if constexpr (kWithCuda)
    if (handle_) rt::wait_event(stream.handle(), handle_);
}
bool Event::done() const {
  if constexpr (kWithCuda)
    if (handle_) return rt::event_done(handle_);
  return true;
}
void Event::synchronize_unchecked() const {
  refuse_waiting();
  if (done()) return;
  if constexpr (kWithCuda) rt::synchronize_event(handle_);
  sync_count.fetch_add(1, std::memory_order_relaxed);
}
void Event::synchronize() const {
  synchronize_unchecked();
  if (handle_) check_fault(device_);
}
double Event::since(const Event& earlier) const {
  check(handle_ && earlier.handle_,
        "since: both events must have been recorded, got {} that was not",
        handle_ ? "an earlier one" : "a later one");
  if constexpr (kWithCuda) return rt::elapsed_ms(earlier.handle_, handle_);
  return 0;
}

void record_stream(const Tensor& t, const Stream& stream) {
  check(t.device().is_cuda(), "record_stream: t must be on a GPU, got {}", t.device());
  refuse_other_streams();
  if (t.storage()->stream != stream.id()) t.storage()->used_on.add(stream.id());
}

// Pinned memory is slow to request from the driver, so slots are reused.
class PinnedNumbers {
 public:
  static PinnedNumbers& get() {
    static PinnedNumbers* all = new PinnedNumbers;
    return *all;
  }
  double* take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      constexpr int kBlock = 64;
      auto* const block = static_cast<double*>(pinned(kBlock * sizeof(double)));
      for (int i = 0; i < kBlock; ++i) free_.push_back(block + i);
    }
    double* const p = free_.back();
    free_.pop_back();
    return p;
  }
  void give(double* p) {
    const std::lock_guard lock(mutex_);
    free_.push_back(p);
  }

 private:
  std::mutex mutex_;
  std::vector<double*> free_;
};

Readback::Readback(const Tensor& t) {
  check(t.numel() == 1, "readback: needs exactly 1 element, got shape {}", t.shape());
  if (!t.device().is_cuda()) {
    read_ = t.item();
    return;
  }
  refuse_reading();
  const Tensor number = t.detach().to(DType::f64);
  const Stream stream = Stream::current(t.device());
  pinned_ = PinnedNumbers::get().take();
  detail::use_device(t.device().index);
  if constexpr (kWithCuda)
    rt::copy(pinned_, number.raw(), sizeof(double), rt::CopyKind::to_host, stream.handle());
  written_.emplace();
  written_->record(stream);
}
Readback::Readback(Readback&& o) noexcept
    : read_(o.read_), pinned_(std::exchange(o.pinned_, nullptr)), written_(std::move(o.written_)) {}
Readback& Readback::operator=(Readback&& o) noexcept {
  std::swap(read_, o.read_);
  std::swap(pinned_, o.pinned_);
  std::swap(written_, o.written_);
  return *this;
}
Readback::~Readback() {
  if (!pinned_) return;
  try {
    if (written_) written_->synchronize_unchecked();  // the GPU may still write to it
  } catch (const Error&) {
    return;  // the device failed: the slot is lost, and a destructor must not throw
  }
  PinnedNumbers::get().give(pinned_);
}
double Readback::value() const {
  if (!pinned_) return read_;
  written_->synchronize();
  return *pinned_;
}

namespace detail {

void use_device(int index) {
  if constexpr (kWithCuda)
    if (rt::current_device() != index) rt::set_device(index);
}

void* allocate_uncached(Device device, std::int64_t bytes) {
  use_device(device.index);
  void* p = nullptr;
  if constexpr (kWithCuda) {
    p = rt::allocate(bytes);
    if (!p) {
      release_cached_memory(device);
      p = rt::allocate(bytes);
    }
  }
  return p;
}

IndexFault* index_fault(Device device) {
  check_device(device);
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (!r.faults[device.index].load())
    r.faults[device.index] = new (pinned(sizeof(IndexFault))) IndexFault{};
  return r.faults[device.index].load();
}

void copy_across(const Tensor& from, const Tensor& to) {
  const std::int64_t bytes = from.numel() * static_cast<std::int64_t>(size_of(from.dtype()));
  if (bytes == 0) return;
  const bool reads = from.device().is_cuda(), writes = to.device().is_cuda();
  if (!writes) refuse_reading();
  if (!reads)
    refuse_in_capture(
        "graph: host memory cannot be copied to a GPU inside a capture, since every replay would "
        "read it again; copy it into a tensor before replay()");
  if (from.device() != to.device()) refuse_other_streams();
  const Stream stream = Stream::current(reads ? from.device() : to.device());
  use_device(stream.device().index);
  if constexpr (kWithCuda) {
    using Kind = rt::CopyKind;
    if (reads && writes && from.device() != to.device()) {
      // The target's stream may still use its memory, and later work on it must wait for the copy.
      const Stream target = Stream::current(to.device());
      Event ready, copied;
      ready.record(target);
      ready.wait(stream);
      use_device(stream.device().index);
      rt::copy(to.raw(), from.raw(), bytes, Kind::between_devices, stream.handle());
      copied.record(stream);
      copied.wait(target);
      return;
    }
    if (!reads) return upload(to.raw(), from.raw(), bytes, stream);
    const Kind kind = writes ? Kind::on_device : Kind::to_host;
    rt::copy(to.raw(), from.raw(), bytes, kind, stream.handle());
  }
  if (!writes) stream.synchronize();
}

}  // namespace detail
}  // namespace weft::cuda
