// NCCL without GPUs: ranks are threads or processes on emulated devices. A collective waits for the
// other ranks on the host; the real library waits on the device. This tests the order of calls,
// their counts and their addresses.
#include "weft/core/kernels/nccl.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "weft/core/error.h"
#include "weft/cuda/emu/board.h"
#include "weft/cuda/emu/control.h"

namespace weft::emu {
constinit std::atomic<const char*> nccl_failure{nullptr};
}

namespace weft::cuda::nccl {
namespace {

using emu::Board;
using emu::Bytes;
using Stream = rt::StreamHandle;

// State between begin() and end().
struct Group {
  bool open = false;
  std::vector<std::function<void()>> calls, receives;  // sends run first
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
  CommTag(const Id& id, int r, int n) : board(id.bytes, r, n), rank(r), size(n) {}
  Board board;
  int rank, size;

  /// Publishes `own` to all ranks and calls use() with the data of all.
  template <class Use>
  void exchange(const Bytes& own, Use use) {
    if (const std::vector<Bytes> all = board.exchange(own); !all.empty()) use(all);
  }
};

int version() { return 22809; }

Id make_id() {
  Id id;
  const std::string folder = Board::make();
  check_system(folder.size() < sizeof id.bytes, "nccl: the path {} is too long", folder);
  std::memcpy(id.bytes, folder.data(), folder.size());
  return id;
}

Comm connect(const Id& id, int rank, int size) { return new CommTag(id, rank, size); }

void disconnect(Comm comm) {
  comm->board.leave();
  delete comm;
}

// A thread that waits in it still accesses it, so it is not destroyed here.
void abort(Comm comm) {
  static std::mutex mutex;
  static auto* aborted = new std::vector<Comm>;
  {
    const std::lock_guard lock(mutex);
    aborted->push_back(comm);
  }
  comm->board.abort();
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
    comm->exchange(read(in, bytes_of(count, dtype), s),
                   [&](const auto& all) { put(out, reduced(all, 0, count, dtype, how), s); });
  });
}

void reduce(const void* in, void* out, std::int64_t count, DType dtype, Reduce how, int root,
            Comm comm, Stream s) {
  call([=] {
    comm->exchange(read(in, bytes_of(count, dtype), s), [&](const auto& all) {
      if (comm->rank == root) put(out, reduced(all, 0, count, dtype, how), s);
    });
  });
}

void reduce_scatter(const void* in, void* out, std::int64_t count, DType dtype, Reduce how,
                    Comm comm, Stream s) {
  call([=] {
    comm->exchange(read(in, bytes_of(count * comm->size, dtype), s), [&](const auto& all) {
      put(out, reduced(all, comm->rank * count, count, dtype, how), s);
    });
  });
}

void all_gather(const void* in, void* out, std::int64_t bytes, Comm comm, Stream s) {
  call([=] {
    comm->exchange(read(in, bytes, s), [&](const auto& all) {
      for (int r = 0; r < comm->size; ++r)
        put(static_cast<char*>(out) + r * bytes, all[static_cast<std::size_t>(r)], s);
    });
  });
}

void broadcast(const void* in, void* out, std::int64_t bytes, int root, Comm comm, Stream s) {
  call([=] {
    comm->exchange(comm->rank == root ? read(in, bytes, s) : Bytes{},
                   [&](const auto& all) { put(out, all[static_cast<std::size_t>(root)], s); });
  });
}

void send(const void* data, std::int64_t bytes, int to, Comm comm, Stream s) {
  call([=] { comm->board.send(to, read(data, bytes, s)); });
}

void receive(void* data, std::int64_t bytes, int from, Comm comm, Stream s) {
  call(
      [=] {
        const Bytes b = comm->board.receive(from);
        if (b.empty()) return;  // aborted, or an empty message
        check_system(static_cast<std::int64_t>(b.size()) == bytes,
                     "nccl: {} bytes sent, {} expected", b.size(), bytes);
        put(data, b, s);
      },
      true);
}

}  // namespace weft::cuda::nccl
