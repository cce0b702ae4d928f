// NCCL without GPUs: ranks that are threads of this process, on imitated devices. A collective
// waits on the host for the other ranks, which the library does on the device; the order of calls,
// their counts and places in memory are what is tested with it.
#include "weft/core/kernels/nccl.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "weft/core/error.h"
#include "weft/cuda/emu/control.h"

namespace weft::emu {
constinit std::atomic<const char*> nccl_failure{nullptr};
}

namespace weft::cuda::nccl {
namespace {

using Bytes = std::vector<char>;
using Stream = rt::StreamHandle;

/// Where the ranks of a communicator meet.
struct Board {
  explicit Board(int size) : shown(static_cast<std::size_t>(size)) {}
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Bytes> shown;  // by each rank, to all, in the present collective
  int came = 0, left = 0, connected = 0;
  std::uint64_t round = 0;
  std::map<std::pair<int, int>, std::deque<Bytes>> mail;  // by (from, to)
};

std::mutex boards_mutex;
std::map<std::uint64_t, std::shared_ptr<Board>>& boards() {
  static auto* all = new std::map<std::uint64_t, std::shared_ptr<Board>>;
  return *all;
}

std::uint64_t number_of(const Id& id) {
  std::uint64_t n;
  std::memcpy(&n, id.bytes, sizeof n);
  return n;
}

// Between begin() and end().
struct Group {
  bool open = false;
  std::vector<std::function<void()>> calls, receives;  // what is sent goes first
};
thread_local Group group;

void call(std::function<void()> f, bool receives = false) {
  if (!group.open) return f();
  (receives ? group.receives : group.calls).push_back(std::move(f));
}

Bytes read(const void* from, std::int64_t bytes, Stream s) {
  Bytes b(static_cast<std::size_t>(bytes));
  if (bytes > 0) rt::copy(b.data(), from, bytes, rt::CopyKind::to_host, s);
  return b;
}

void write(void* to, const char* from, std::int64_t bytes, Stream s) {
  if (bytes > 0) rt::copy(to, from, bytes, rt::CopyKind::to_device, s);
}

}  // namespace

struct CommTag {
  std::shared_ptr<Board> board;
  int rank, size;
  std::atomic<bool> aborted{false};

  template <class Ready>
  bool wait(std::unique_lock<std::mutex>& lock, Ready ready) {
    board->changed.wait(lock, [&] { return ready() || aborted; });
    return !aborted;
  }

  /// Shows `own` to all, and calls use() with what all have shown.
  void meet(Bytes own, const std::function<void(const std::vector<Bytes>&)>& use) {
    Board& b = *board;
    std::unique_lock lock(b.mutex);
    if (!wait(lock, [&] { return b.left == 0; })) return;  // the last one is over for all
    b.shown[static_cast<std::size_t>(rank)] = std::move(own);
    const std::uint64_t round = b.round;
    if (++b.came == size) {
      b.came = 0;
      b.left = size;
      ++b.round;
      b.changed.notify_all();
    } else if (!wait(lock, [&] { return b.round != round; })) {
      return;
    }
    use(b.shown);
    if (--b.left == 0) b.changed.notify_all();
  }
};

int version() { return 22809; }

Id make_id() {
  static std::atomic<std::uint64_t> count{0};
  Id id;
  const std::uint64_t n = ++count;
  std::memcpy(id.bytes, &n, sizeof n);
  return id;
}

Comm connect(const Id& id, int rank, int size) {
  std::shared_ptr<Board> board;
  {
    const std::lock_guard lock(boards_mutex);
    std::shared_ptr<Board>& entry = boards()[number_of(id)];
    if (!entry) entry = std::make_shared<Board>(size);
    board = entry;
  }
  std::unique_lock lock(board->mutex);
  if (++board->connected == size) board->changed.notify_all();
  board->changed.wait(lock, [&] { return board->connected == size; });
  return new CommTag{board, rank, size};
}

void disconnect(Comm comm) { delete comm; }

// Who waits in it still looks at it: it stays, here.
void abort(Comm comm) {
  static auto* aborted = new std::vector<Comm>;
  {
    const std::lock_guard lock(boards_mutex);
    aborted->push_back(comm);
  }
  const std::lock_guard lock(comm->board->mutex);
  comm->aborted = true;
  comm->board->changed.notify_all();
}

std::string failure(Comm) {
  const char* const text = emu::nccl_failure.load();
  return text ? text : "";
}

void begin() { group.open = true; }
void end() {
  group.open = false;
  const Group g = std::exchange(group, {});
  for (const auto& f : g.calls) f();
  for (const auto& f : g.receives) f();
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

void put(void* to, const Bytes& b, Stream s) {
  write(to, b.data(), static_cast<std::int64_t>(b.size()), s);
}

}  // namespace

void all_reduce(const void* in, void* out, std::int64_t count, DType dtype, Reduce how, Comm comm,
                Stream s) {
  call([=] {
    comm->meet(read(in, bytes_of(count, dtype), s),
               [&](const auto& all) { put(out, reduced(all, 0, count, dtype, how), s); });
  });
}

void reduce(const void* in, void* out, std::int64_t count, DType dtype, Reduce how, int root,
            Comm comm, Stream s) {
  call([=] {
    comm->meet(read(in, bytes_of(count, dtype), s), [&](const auto& all) {
      if (comm->rank == root) put(out, reduced(all, 0, count, dtype, how), s);
    });
  });
}

void reduce_scatter(const void* in, void* out, std::int64_t count, DType dtype, Reduce how,
                    Comm comm, Stream s) {
  call([=] {
    comm->meet(read(in, bytes_of(count * comm->size, dtype), s), [&](const auto& all) {
      put(out, reduced(all, comm->rank * count, count, dtype, how), s);
    });
  });
}

void all_gather(const void* in, void* out, std::int64_t bytes, Comm comm, Stream s) {
  call([=] {
    comm->meet(read(in, bytes, s), [&](const auto& all) {
      for (int r = 0; r < comm->size; ++r)
        put(static_cast<char*>(out) + r * bytes, all[static_cast<std::size_t>(r)], s);
    });
  });
}

void broadcast(const void* in, void* out, std::int64_t bytes, int root, Comm comm, Stream s) {
  call([=] {
    comm->meet(comm->rank == root ? read(in, bytes, s) : Bytes{},
               [&](const auto& all) { put(out, all[static_cast<std::size_t>(root)], s); });
  });
}

void send(const void* data, std::int64_t bytes, int to, Comm comm, Stream s) {
  call([=] {
    Bytes b = read(data, bytes, s);
    const std::lock_guard lock(comm->board->mutex);
    comm->board->mail[{comm->rank, to}].push_back(std::move(b));
    comm->board->changed.notify_all();
  });
}

void receive(void* data, std::int64_t bytes, int from, Comm comm, Stream s) {
  call(
      [=] {
        std::unique_lock lock(comm->board->mutex);
        auto& mail = comm->board->mail[{from, comm->rank}];
        if (!comm->wait(lock, [&] { return !mail.empty(); })) return;
        const Bytes b = std::move(mail.front());
        mail.pop_front();
        check_system(static_cast<std::int64_t>(b.size()) == bytes,
                     "nccl: {} bytes sent, {} expected", b.size(), bytes);
        put(data, b, s);
      },
      true);
}

}  // namespace weft::cuda::nccl
