// NCCL without GPUs: ranks are threads or processes on emulated devices. As with the real library
// a call appends a kernel to the stream, and the kernel waits for the other ranks while the host
// goes on. It fails like the real one, too: see emu::NcclFault.
#include "weft/core/kernels/nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "weft/core/error.h"
#include "weft/cuda/emu/board.h"
#include "weft/cuda/emu/control.h"
#include "weft/cuda/emu/stream.h"

namespace weft::emu {
constinit std::atomic<NcclFault (*)(const NcclCall&)> nccl_fault{nullptr};
constinit std::atomic<int> nccl_version{22809};
constinit NcclCounts nccl_counts;
}  // namespace weft::emu

namespace weft::cuda::nccl {

using emu::Board;
using emu::Bytes;
using emu::NcclFault;
using Stream = rt::StreamHandle;

struct CommTag {
  CommTag(const Id& id, int r, int n)
      : board(id.bytes, r, n), rank(r), size(n), device(rt::current_device()) {}
  Board board;
  const int rank, size, device;
  std::thread connecting;                    // or splitting
  std::atomic<CommTag*> splitting{nullptr};  // connects while this one is split
  std::atomic<bool> in_progress{true};       // the host's last call is not taken over
  std::atomic<bool> leaving{false};          // revoked or aborted
  std::atomic<int> kernels{0};               // that run now
  std::int64_t calls = 0;
  std::atomic<std::thread::id> caller{};  // the thread between a call and its ready()
  std::mutex mutex;
  std::string error;

  void fail(const std::string& why) {
    const std::lock_guard lock(mutex);
    if (error.empty()) error = why;
  }
  void leave() {
    if (leaving.exchange(true)) return;
    board.abort();
    if (CommTag* const child = splitting.load()) child->leave();
  }
  NcclFault fault(const char* name, std::int64_t number, std::int64_t bytes) const {
    const auto decide = emu::nccl_fault.load();
    return decide ? decide({name, device, rank, size, number, bytes}) : NcclFault::none;
  }
  /// Publishes `own` to all ranks and calls use() with the data of all. Called by a kernel.
  template <class Use>
  void exchange(const Bytes& own, Use use) {
    std::vector<Bytes> all;
    emu::while_others_run([&] { all = board.exchange(own); });
    // A rank that gives less than the others is not noticed by NCCL either.
    for (Bytes& part : all) part.resize(std::max(part.size(), own.size()));
    if (!all.empty()) use(all);
  }
};

namespace {

constexpr const char* kNetwork = "remote process exited or there was a network error";
constexpr std::chrono::microseconds kSleep{50};

// The communicators of this process. They are never destroyed: a thread may still wait in one.
struct Comms {
  std::mutex mutex;
  std::vector<Comm> all;
  std::vector<Comm> aborted;  // for ever: a thread may still ask for their state
};
Comms& comms() {
  static auto* c = new Comms;
  return *c;
}

void remove(Comm comm) {
  const std::lock_guard lock(comms().mutex);
  std::erase(comms().all, comm);
}

// Freeing a communicator's memory waits for the kernels of its GPU, also for those of other
// communicators.
bool has_kernels(int device) {
  const std::lock_guard lock(comms().mutex);
  return std::any_of(comms().all.begin(), comms().all.end(),
                     [&](Comm c) { return c->device == device && c->kernels > 0; });
}

struct Call {
  const char* name;
  std::int64_t bytes;
  Comm comm;
  Stream stream;
  std::function<void()> kernel;
  bool receives;
};

// State between begin() and end().
struct Group {
  bool open = false;
  std::vector<Call> calls;
  std::vector<Comm> aborted;
};
thread_local Group group;

void launch(std::vector<Call> calls) {
  const Comm comm = calls.front().comm;
  const Stream stream = calls.front().stream;
  comm->caller = std::this_thread::get_id();
  const NcclFault fault = comm->fault(calls.front().name, comm->calls++, calls.front().bytes);
  if (fault == NcclFault::block) {
    comm->in_progress = true;
    return;
  }
  // Sends first, so that no rank waits for one that waits for it.
  std::stable_partition(calls.begin(), calls.end(), [](const Call& c) { return !c.receives; });
  emu::submit_promptly(stream, [calls = std::move(calls), comm, fault] {
    ++comm->kernels;
    if (fault == NcclFault::error) comm->fail(kNetwork);
    for (const Call& c : calls) {
      if (fault == NcclFault::none)
        c.kernel();
      else
        emu::while_others_run([&] {
          while (fault == NcclFault::stuck) std::this_thread::sleep_for(kSleep);
          comm->board.hang(Bytes(static_cast<std::size_t>(c.bytes)));
        });
    }
    --comm->kernels;
  });
}

void call(const char* name, std::int64_t bytes, Comm comm, Stream s, std::function<void()> kernel,
          bool receives = false) {
  Call c{name, bytes, comm, s, std::move(kernel), receives};
  if (group.open)
    group.calls.push_back(std::move(c));
  else
    launch({std::move(c)});
}

Bytes read(const void* from, std::int64_t bytes) {
  const char* const p = static_cast<const char*>(from);
  return {p, p + bytes};
}

void wait_for_kernels(const std::vector<Comm>& aborted) {
  for (const Comm comm : aborted) {
    if (comm->connecting.joinable()) comm->connecting.join();
    while (has_kernels(comm->device)) std::this_thread::sleep_for(kSleep);
    remove(comm);
    const std::lock_guard lock(comms().mutex);
    comms().aborted.push_back(comm);
  }
}

}  // namespace

int version() { return emu::nccl_version; }

Id make_id() {
  Id id;
  const std::string folder = Board::make();
  check_system(folder.size() < sizeof id.bytes, "nccl: the path {} is too long", folder);
  std::memcpy(id.bytes, folder.data(), folder.size());
  return id;
}

namespace {

Comm add_comm(const Id& id, int rank, int size) {
  const Comm comm = new CommTag(id, rank, size);
  const std::lock_guard lock(comms().mutex);
  comms().all.push_back(comm);
  return comm;
}

// What the ranks of a communicator exchange to split it; the id is set by the first of a colour.
struct Split {
  int color, key;
  Id id;
};

std::vector<Split> ask_all(Comm parent, const Split& own) {
  Bytes bytes(sizeof own);
  std::memcpy(bytes.data(), &own, sizeof own);
  const std::vector<Bytes> parts = parent->board.exchange(bytes);
  std::vector<Split> all(parts.size());
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (parts[r].size() != sizeof(Split)) return {};  // that rank has been aborted
    std::memcpy(&all[r], parts[r].data(), sizeof(Split));
  }
  return all;
}

// Null after an error, and for no colour.
Comm split_now(Comm parent, Split own) {
  const auto lost = [parent]() -> Comm {
    if (!parent->leaving) parent->fail(kNetwork);  // another rank has been aborted
    return nullptr;
  };
  const std::vector<Split> asked = ask_all(parent, own);
  if (asked.empty()) return lost();
  // In the order of the new communicator: its first rank, and the number of those before this one.
  const auto order = [&](int r) { return std::pair(asked[static_cast<std::size_t>(r)].key, r); };
  int first = parent->rank, before = 0, size = 0;
  for (int r = 0; r < static_cast<int>(asked.size()); ++r) {
    if (asked[static_cast<std::size_t>(r)].color != own.color) continue;
    if (order(r) < order(first)) first = r;
    before += order(r) < order(parent->rank);
    ++size;
  }
  const bool makes = own.color != kNoColor && first == parent->rank;
  if (makes) own.id = make_id();
  const std::vector<Split> answered = ask_all(parent, own);
  if (answered.empty()) return lost();
  if (own.color == kNoColor) return nullptr;
  const Comm comm = add_comm(answered[static_cast<std::size_t>(first)].id, before, size);
  parent->splitting = comm;
  if (parent->leaving) comm->leave();
  comm->board.exchange({});
  comm->in_progress = false;
  parent->splitting = nullptr;
  return comm;
}

}  // namespace

void split(Comm parent, int color, int key, Comm& made) {
  ++emu::nccl_counts.splits;
  made = nullptr;
  parent->in_progress = true;
  parent->caller = std::this_thread::get_id();
  if (parent->connecting.joinable()) parent->connecting.join();
  const NcclFault fault = parent->fault("ncclCommSplit", -1, 0);
  parent->connecting = std::thread([parent, own = Split{color, key, {}}, &made, fault] {
    rt::set_device(parent->device);
    if (fault == NcclFault::error) parent->fail(kNetwork);
    if (fault == NcclFault::none)
      made = split_now(parent, own);
    else
      parent->board.hang({});
    parent->in_progress = false;
  });
}

Comm connect(const Id& id, int rank, int size, int max_blocks) {
  ++emu::nccl_counts.connects;
  emu::nccl_counts.max_blocks = max_blocks;
  const Comm comm = add_comm(id, rank, size);
  comm->caller = std::this_thread::get_id();
  const NcclFault fault = comm->fault("ncclCommInitRankConfig", -1, 0);
  comm->connecting = std::thread([comm, fault] {
    if (fault == NcclFault::error) comm->fail(kNetwork);
    if (fault == NcclFault::none)
      comm->board.exchange({});
    else
      comm->board.hang({});
    comm->in_progress = false;
  });
  return comm;
}

bool ready(Comm comm) {
  if (const std::string why = failure(comm); !why.empty()) throw Error(why, Fault::system);
  if (comm->in_progress) return false;
  comm->caller = std::thread::id();
  return true;
}

void disconnect(Comm comm) {
  if (comm->connecting.joinable()) comm->connecting.join();
  comm->board.leave();
  remove(comm);
  delete comm;
}

bool can_revoke() { return version() >= 22809; }
void revoke(Comm comm) { comm->leave(); }

void abort(Comm comm) {
  comm->leave();
  if (group.open)
    group.aborted.push_back(comm);
  else
    wait_for_kernels({comm});
}

std::string failure(Comm comm) {
  const std::thread::id caller = comm->caller;
  if (caller != std::thread::id() && caller != std::this_thread::get_id())
    comm->fail("two threads ask for the state of a communicator");
  const std::lock_guard lock(comm->mutex);
  return comm->error;
}

void begin() { group.open = true; }
void end() {
  group.open = false;
  const Group g = std::exchange(group, {});
  if (!g.calls.empty()) launch(g.calls);
  wait_for_kernels(g.aborted);
}

namespace {

template <class T>
void combine(const std::vector<Bytes>& parts, std::int64_t first, std::int64_t count, Reduce how,
             Bytes& out) {
  using A = Compute<T>;
  out.resize(static_cast<std::size_t>(count) * sizeof(T));
  T* to = reinterpret_cast<T*>(out.data());
  for (std::int64_t i = 0; i < count; ++i) {
    A sum{};
    for (std::size_t r = 0; r < parts.size(); ++r) {
      const A x = static_cast<A>(reinterpret_cast<const T*>(parts[r].data())[first + i]);
      if (r == 0)
        sum = x;
      else if (how == Reduce::sum)
        sum = static_cast<A>(sum + x);
      else if (x != x || (how == Reduce::max ? x > sum : x < sum))
        sum = x;
    }
    to[i] = static_cast<T>(sum);
  }
}

// Elements [first, first + count) of the reduction.
Bytes reduced(const std::vector<Bytes>& parts, std::int64_t first, std::int64_t count, DType dtype,
              Reduce how) {
  Bytes out;
  dispatch_numeric(dtype, [&]<class T>() { combine<T>(parts, first, count, how, out); });
  return out;
}

std::int64_t bytes_of(std::int64_t count, DType t) {
  return count * static_cast<std::int64_t>(size_of(t));
}

void put(void* to, const Bytes& b) {
  if (!b.empty()) std::memcpy(to, b.data(), b.size());
}

}  // namespace

void all_reduce(const void* in, void* out, std::int64_t count, DType dtype, Reduce how, Comm comm,
                Stream s) {
  call("ncclAllReduce", bytes_of(count, dtype), comm, s, [=] {
    comm->exchange(read(in, bytes_of(count, dtype)),
                   [&](const auto& all) { put(out, reduced(all, 0, count, dtype, how)); });
  });
}

void reduce(const void* in, void* out, std::int64_t count, DType dtype, Reduce how, int root,
            Comm comm, Stream s) {
  call("ncclReduce", bytes_of(count, dtype), comm, s, [=] {
    comm->exchange(read(in, bytes_of(count, dtype)), [&](const auto& all) {
      if (comm->rank == root) put(out, reduced(all, 0, count, dtype, how));
    });
  });
}

void reduce_scatter(const void* in, void* out, std::int64_t count, DType dtype, Reduce how,
                    Comm comm, Stream s) {
  const std::int64_t bytes = bytes_of(count * comm->size, dtype);
  call("ncclReduceScatter", bytes, comm, s, [=] {
    comm->exchange(read(in, bytes), [&](const auto& all) {
      put(out, reduced(all, comm->rank * count, count, dtype, how));
    });
  });
}

void all_gather(const void* in, void* out, std::int64_t bytes, Comm comm, Stream s) {
  call("ncclAllGather", bytes, comm, s, [=] {
    comm->exchange(read(in, bytes), [&](const auto& all) {
      for (int r = 0; r < comm->size; ++r)
        put(static_cast<char*>(out) + r * bytes, all[static_cast<std::size_t>(r)]);
    });
  });
}

void broadcast(const void* in, void* out, std::int64_t bytes, int root, Comm comm, Stream s) {
  call("ncclBroadcast", bytes, comm, s, [=] {
    comm->exchange(comm->rank == root ? read(in, bytes) : Bytes{},
                   [&](const auto& all) { put(out, all[static_cast<std::size_t>(root)]); });
  });
}

void send(const void* data, std::int64_t bytes, int to, Comm comm, Stream s) {
  call("ncclSend", bytes, comm, s, [=] { comm->board.send(to, read(data, bytes)); });
}

void receive(void* data, std::int64_t bytes, int from, Comm comm, Stream s) {
  call(
      "ncclRecv", bytes, comm, s,
      [=] {
        Bytes b;
        emu::while_others_run([&] { b = comm->board.receive(from); });
        if (b.empty()) return;  // aborted, or an empty message
        if (static_cast<std::int64_t>(b.size()) == bytes)
          put(data, b);
        else
          comm->fail(message("{} bytes sent, {} expected", b.size(), bytes));
      },
      true);
}

}  // namespace weft::cuda::nccl
