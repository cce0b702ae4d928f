// The runtime of the emulated GPUs: launches, memory, streams, events and graphs.
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/kernel_timer.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/cuda/device.h"
#include "weft/cuda/emu/code.h"
#include "weft/cuda/emu/control.h"
#include "weft/cuda/emu/driver.h"

namespace weft {
namespace emu {

constinit Control control;

void run_grid(void (*body)(void*), void* context, dim3 grid, dim3 block, std::size_t shared) {
  here.grid_dim = grid;
  ++stats.launches;
  const bool backwards = options.order == Order::reverse;
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z;
  Engine::get().begin_grid();
  const struct End {
    ~End() { Engine::get().end_grid(); }  // also when a block throws
  } end;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t n = backwards ? blocks - 1 - i : i;
    const uint3 at{static_cast<unsigned>(n % grid.x), static_cast<unsigned>(n / grid.x % grid.y),
                   static_cast<unsigned>(n / grid.x / grid.y)};
    Engine::get().run_block(body, context, at, block, shared);
  }
}

}  // namespace emu

namespace cuda {
namespace {

using emu::Clock;
using emu::driver;
using emu::Driver;
using emu::is_pinned;
using emu::kPage;
using emu::Mark;
using emu::Queue;
using emu::run_until;
using emu::submit;
using emu::synchronize_queues;
using emu::whole_pages;
using emu::Work;

constinit thread_local int current_index = 0;

constexpr std::size_t kGuard = kPage;  // inaccessible bytes after each device allocation

Queue& queue_of(rt::StreamHandle s) { return *static_cast<Queue*>(s); }

void list(const emu::Command& command) {
  const std::lock_guard lock(driver().mutex);
  if (emu::control.commands) emu::control.commands->push_back(command);
}
using Kind = emu::Command::Kind;
using MarkHandle = std::shared_ptr<Mark>;
MarkHandle& mark_of(rt::EventHandle e) { return *static_cast<MarkHandle*>(e); }
void check_not_captured(const Mark& m) {
  check(!m.captured, "graph: the host must not ask for an event that was recorded in a capture");
}

}  // namespace

namespace detail {

void launch(dim3 grid, dim3 block, std::size_t shared, void (*run)(void*), void* context,
            void (*destroy)(void*)) {
  weft::detail::count_launch();
  const std::shared_ptr<void> packed(context, destroy);
  if (!emu::has_code(emu::control.code, emu::control.capability))
    refuse_code(current_index, "no kernel image is available for execution on the device");
  if (grid.x > kMaxGridX || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ)
    refuse_grid(grid.x, grid.y, grid.z);
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  check_system(threads >= 1 && threads <= emu::Engine::kMaxThreads,
               "launch: a block must have 1 to 1024 threads, got {} x {} x {}", block.x, block.y,
               block.z);
  check_system(block.z <= 64, "launch: a block must have at most 64 threads along z, got {}",
               block.z);
  if (static_cast<std::int64_t>(shared) > emu::control.shared_bytes)
    refuse_shared_memory(current_index, emu::control.shared_bytes, shared);
  const rt::StreamHandle stream =
      Stream::current({Device::Kind::cuda, static_cast<std::int16_t>(current_index)}).handle();
  list({Kind::kernel, stream});
  submit(queue_of(stream), [=] { emu::run_grid(run, packed.get(), grid, block, shared); });
}

}  // namespace detail

namespace rt {

int device_count(std::string& why) {
  const char* wanted = std::getenv("WEFT_EMU_DEVICES");
  const int count = wanted ? std::atoi(wanted) : emu::kDevices;
  if (count == 0) why = "WEFT_EMU_DEVICES is 0";
  return count;
}
void set_device(int index) { current_index = index; }
int current_device() { return current_index; }
std::string device_name(int index) { return message("emulated GPU {}", index); }
int multiprocessors(int) { return emu::control.multiprocessors; }
int compute_capability(int) { return emu::control.capability; }
std::string compiled_code() { return emu::control.code; }
std::string unique_id(int index) { return message("emulated GPU {}", index); }
std::string pci_address(int index) { return message("0000:0{}:00.0", 9 - index); }
std::int64_t total_memory(int) { return emu::control.memory_bytes; }
void memory_info(std::int64_t& free, std::int64_t& total) {
  const std::lock_guard lock(driver().mutex);
  total = emu::control.memory_bytes;
  free = total - driver().used[current_index];
}
void synchronize_device() {
  const std::lock_guard lock(driver().mutex);
  for (const auto& q : driver().queues)
    check(q->device != current_index || !q->recording,
          "graph: the host must not wait for a device while a stream of it is captured");
  synchronize_queues(current_index);
}

void* allocate(std::int64_t bytes) {
  const std::lock_guard lock(driver().mutex);
  Driver& d = driver();
  if (d.used[current_index] + bytes > emu::control.memory_bytes) return nullptr;
  const std::size_t room = whole_pages(bytes);
  void* p =
      mmap(nullptr, room + kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  if (d.open) mprotect(p, room, PROT_READ | PROT_WRITE);
  emu::poison(p, room);
  d.blocks[static_cast<char*>(p)] = {bytes, current_index};
  d.used[current_index] += bytes;
  return p;
}
void free(void* p) {
  const std::lock_guard lock(driver().mutex);
  const auto it = driver().blocks.find(static_cast<char*>(p));
  check_system(it != driver().blocks.end(), "free: the address must be one that allocate() gave");
  const auto [bytes, device] = it->second;
  synchronize_queues(device);
  driver().used[device] -= bytes;
  emu::unpoison(p, whole_pages(bytes));
  munmap(p, whole_pages(bytes) + kGuard);
  driver().blocks.erase(it);
}
void mark_usable(void* p, std::int64_t bytes, std::int64_t room, StreamHandle s) {
  submit(queue_of(s), [=] {
    emu::unpoison(p, static_cast<std::size_t>(room));
    std::memset(p, 0xff, static_cast<std::size_t>(bytes > 0 ? bytes : room));  // NaN
    emu::poison(p, static_cast<std::size_t>(room));
    emu::unpoison(p, static_cast<std::size_t>(bytes));
  });
}
void* allocate_pinned(std::int64_t bytes) {
  const std::lock_guard lock(driver().mutex);
  std::int64_t held = 0;
  for (const auto& [address, size] : driver().pinned) held += size;
  if (held + bytes > emu::control.pinned_bytes) return nullptr;
  void* p = std::malloc(static_cast<std::size_t>(bytes));
  driver().pinned[static_cast<char*>(p)] = bytes;
  return p;
}
void free_pinned(void* p) {
  const std::lock_guard lock(driver().mutex);
  for (std::size_t i = 0; i < driver().queues.size(); ++i)
    run_until(*driver().queues[i], driver().queues[i]->submitted);
  driver().pinned.erase(static_cast<char*>(p));
  std::free(p);
}

StreamHandle create_stream(bool) {
  const std::lock_guard lock(driver().mutex);
  driver().queues.push_back(std::make_unique<Queue>());
  driver().queues.back()->device = current_index;
  return driver().queues.back().get();
}
void synchronize_stream(StreamHandle s) {
  const std::lock_guard lock(driver().mutex);
  check(!queue_of(s).recording, "graph: the host must not wait for a stream while it is captured");
  run_until(queue_of(s), queue_of(s).submitted);
}

EventHandle create_event(bool) {
  const auto mark = std::make_shared<Mark>();
  mark->device = current_index;
  return new MarkHandle(mark);
}
void destroy_event(EventHandle e) { delete &mark_of(e); }
void record_event(EventHandle e, StreamHandle s) {
  const std::lock_guard lock(driver().mutex);
  const MarkHandle mark = mark_of(e);
  check_system(mark->device == queue_of(s).device,
               "event: made on cuda:{}, it must be recorded there, got a stream of cuda:{}",
               mark->device, queue_of(s).device);
  mark->captured = queue_of(s).recording != nullptr;
  // After prompt work the event is prompt, too: the host may ask whether it has happened.
  list({Kind::record, s, 0, e});
  const bool prompt = queue_of(s).submitted > 0 && queue_of(s).prompt == queue_of(s).submitted;
  submit(
      queue_of(s), [mark] { mark->time = Clock::now() + driver().passed; }, prompt);
  mark->queue = &queue_of(s);
  mark->number = queue_of(s).submitted;
}
bool event_done(EventHandle e) {
  const std::lock_guard lock(driver().mutex);
  const Mark& m = *mark_of(e);
  check_not_captured(m);
  return !m.queue || m.queue->finished >= m.number;
}
void synchronize_event(EventHandle e) {
  const std::lock_guard lock(driver().mutex);
  const Mark& m = *mark_of(e);
  check_not_captured(m);
  if (m.queue) run_until(*m.queue, m.number);
}
void wait_event(StreamHandle s, EventHandle e) {
  const std::lock_guard lock(driver().mutex);
  const Mark m = *mark_of(e);
  if (!m.queue) return;
  const bool recording = queue_of(s).recording != nullptr;
  check(recording || !m.captured,
        "graph: a stream outside of a capture must not wait for an event inside");
  check(!recording || m.captured,
        "graph: a stream that is captured must not wait for an event from outside");
  if (recording) return;  // the same stream, so already in order
  list({Kind::wait, s, 0, e});
  if (m.queue != &queue_of(s)) submit(queue_of(s), [m] { run_until(*m.queue, m.number); });
}
double elapsed_ms(EventHandle from, EventHandle to) {
  return std::chrono::duration<double, std::milli>(mark_of(to)->time - mark_of(from)->time).count();
}

void copy(void* to, const void* from, std::int64_t bytes, CopyKind kind, StreamHandle s) {
  weft::detail::count_launch();
  const std::lock_guard lock(driver().mutex);
  const auto n = static_cast<std::size_t>(bytes);
  list({kind == CopyKind::to_device ? Kind::copy_in
        : kind == CopyKind::to_host ? Kind::copy_out
                                    : Kind::copy_on_device,
        s, bytes});
  const bool pageable = (kind == CopyKind::to_device && !is_pinned(from)) ||
                        (kind == CopyKind::to_host && !is_pinned(to));
  check(!pageable || !queue_of(s).recording,
        "graph: a copy from or to pageable memory must not be captured");
  if (kind == CopyKind::to_device && !is_pinned(from)) {
    const char* p = static_cast<const char*>(from);
    const auto staged = std::make_shared<std::vector<char>>(p, p + n);
    submit(queue_of(s), [=] { std::memcpy(to, staged->data(), n); });
    return;
  }
  submit(queue_of(s), [=] { std::memcpy(to, from, n); });
  if (kind == CopyKind::to_host && !is_pinned(to)) synchronize_stream(s);
}

void begin_capture(StreamHandle s) {
  const std::lock_guard lock(driver().mutex);
  check(!queue_of(s).recording, "graph: the stream must not be captured already");
  queue_of(s).recording = new std::vector<Work>;
}
GraphHandle end_capture(StreamHandle s) {
  const std::lock_guard lock(driver().mutex);
  check(queue_of(s).recording, "graph: end_capture() needs a stream that is captured");
  return std::exchange(queue_of(s).recording, nullptr);
}
void launch_graph(GraphHandle g, StreamHandle s) {
  const std::lock_guard lock(driver().mutex);
  check(!queue_of(s).recording, "graph: a graph must not be launched into a capture");
  for (const Work& work : *static_cast<std::vector<Work>*>(g)) submit(queue_of(s), work);
}
void destroy_graph(GraphHandle g) { delete static_cast<std::vector<Work>*>(g); }

}  // namespace rt
}  // namespace cuda
}  // namespace weft
