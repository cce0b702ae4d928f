#include "weft/core/offload_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "weft/core/cuda.h"
#include "weft/core/dispatch.h"
#include "weft/core/error.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

constexpr std::int64_t kPage = 4096;

std::string reason(int code) { return std::strerror(code); }

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  constexpr std::int64_t kPart = 1 << 20;
  char* const out = static_cast<char*>(to);
  const char* const in = static_cast<const char*>(from);
  parallel_for((bytes + kPart - 1) / kPart, kPart, [=](std::int64_t begin, std::int64_t end) {
    const std::int64_t first = begin * kPart, n = std::min(bytes, end * kPart) - first;
    std::memcpy(out + first, in + first, static_cast<std::size_t>(n));
  });
}

struct Release {
  void operator()(Storage* block) const { block->release(); }
};
using Block = std::unique_ptr<Storage, Release>;

Storage* new_block(std::int64_t bytes, Device device, Category category) {
  const CategoryScope scope(category);
  return allocate_storage(bytes, device, false);
}

// Gives the block to `s` and drops its header.
void hand_block(Storage* block, Storage& s) {
  move_block(block, &s);
  block->release();
}

}  // namespace

struct OffloadMemory::Place {
  std::int64_t room = 0;
  char* data = nullptr;
  Place* next = nullptr;        // while free
  Place* older = nullptr;       // of all places
  cuda::Event copied{false};    // on a GPU: after the last copy from or to the place
  Storage* expected = nullptr;  // on a GPU: where expect() copies the contents
};

struct OffloadMemory::File {
  explicit File(const std::string& folder) {
    std::error_code none;
    check(std::filesystem::is_directory(folder, none), "offload: the folder must exist, got '{}'",
          folder);
    // A file without a name goes with the process, however that ends.
    descriptor = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (descriptor < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
      std::string path = folder + "/offload.XXXXXX";
      descriptor = mkostemp(path.data(), O_CLOEXEC);
      if (descriptor >= 0) unlink(path.c_str());
    }
    check(descriptor >= 0, "offload: the folder must be writable, got '{}': {}", folder,
          reason(errno));
  }
  ~File() { close(descriptor); }
  int descriptor = -1;
  std::int64_t size = 0;
};

// One stream for each direction of the bus, which carries both at once.
struct OffloadMemory::Copies {
  explicit Copies(Device device)
      : in(cuda::Stream::take(device)), out(cuda::Stream::take(device)) {}
  ~Copies() {
    in.give_back();
    out.give_back();
  }
  /// What is submitted to `stream` from now on runs after the work that the current stream has so
  /// far, and after the last copy from or to the place.
  void follow(const cuda::Stream& stream, const Place& p) {
    ready.record(cuda::Stream::current(stream.device()));
    ready.wait(stream);
    p.copied.wait(stream);
  }
  /// Lets the current stream wait for the last copy of the place, which ran on `stream`. A block of
  /// the current stream can be used there again at once, without an event that the host would have
  /// to see pass.
  static void join(const cuda::Stream& stream, const Place& p, Storage& s) {
    const cuda::Stream here = cuda::Stream::current(stream.device());
    p.copied.wait(here);
    if (s.stream != here.id()) return;
    cuda::StreamSet others;
    s.used_on.for_each([&](int id) {
      if (id != stream.id()) others.add(id);
    });
    s.used_on = others;
  }
  cuda::Stream in, out;
  cuda::Event ready;
};

OffloadMemory::OffloadMemory(Device device, const std::string& folder)
    : device_(device), folder_(folder) {
  if (device.is_cpu()) file_ = std::make_unique<File>(folder);
  if (device.is_cuda()) copies_ = std::make_unique<Copies>(device);
}

OffloadMemory::~OffloadMemory() {
  if (copies_) try {
      copies_->in.synchronize();
      copies_->out.synchronize();
    } catch (const Error&) {  // the device has failed, which others report
    }
  while (Place* const p = all_) {
    all_ = p->older;
    if (p->expected) p->expected->release();
    if (file_ && p->data) munmap(p->data, static_cast<std::size_t>(p->room));
    if constexpr (kWithCuda)
      if (copies_ && p->data) cuda::rt::free_pinned(p->data);
    delete p;
  }
}

void OffloadMemory::report_full(const std::string& why) {
  if (!std::exchange(full_, true))
    log_line(message("offload: no room for more than {} bytes{}: {}; the rest stays in memory",
                     bytes_, file_ ? " in '" + folder_ + "'" : std::string(), why));
}

// A full disk must be known now: a write to a mapped page without a block on the disk would end the
// process by a signal.
bool OffloadMemory::grow(Place& p) {
  if (file_) {
    p.room = (p.room + kPage - 1) / kPage * kPage;
    if (const int code = posix_fallocate(file_->descriptor, file_->size, p.room)) {
      report_full(reason(code));
      return false;
    }
    void* const at = mmap(nullptr, static_cast<std::size_t>(p.room), PROT_READ | PROT_WRITE,
                          MAP_SHARED, file_->descriptor, file_->size);
    if (at == MAP_FAILED) {
      report_full(reason(errno));
      return false;
    }
    p.data = static_cast<char*>(at);
    file_->size += p.room;
  }
  if constexpr (kWithCuda)
    if (copies_) {
      p.data = static_cast<char*>(cuda::rt::allocate_pinned(p.room));
      if (!p.data) {
        report_full("the system pins no more memory");
        return false;
      }
    }
  return true;
}

OffloadMemory::Place* OffloadMemory::take(std::int64_t bytes) {
  // The smallest free place that is large enough, and not twice as large.
  Place** best = nullptr;
  for (Place** p = &free_; *p; p = &(*p)->next)
    if ((*p)->room >= bytes && (*p)->room < 2 * std::max(bytes, kPage) &&
        (!best || (*p)->room < (*best)->room))
      best = p;
  if (best) {
    Place* const p = *best;
    *best = std::exchange(p->next, nullptr);
    return p;
  }
  if (full_) return nullptr;
  auto p = std::make_unique<Place>();
  p->room = bytes;
  if (!grow(*p)) return nullptr;
  bytes_ += p->room;
  p->older = all_;
  return all_ = p.release();
}

void OffloadMemory::give_back(Place* p) {
  if (Storage* const block = std::exchange(p->expected, nullptr)) block->release();
  p->next = std::exchange(free_, p);
}

void* OffloadMemory::data(Place* p) { return p->data; }

void OffloadMemory::store(Place* p, Storage& s) {
  moved_ += s.bytes;
  if (file_) return copy_bytes(p->data, s.data, s.bytes);
  if (!copies_) return;
  copies_->follow(copies_->out, *p);
  if constexpr (kWithCuda)
    cuda::rt::copy(p->data, s.data, s.bytes, cuda::rt::CopyKind::to_host, copies_->out.handle());
  p->copied.record(copies_->out);
  s.used_on.add(copies_->out.id());
}

void OffloadMemory::wait_stored(Place* p, Storage& s) {
  if (copies_) Copies::join(copies_->out, *p, s);
}

void OffloadMemory::expect(Place* p, std::int64_t bytes, Category category) {
  if (file_) {
    madvise(p->data, static_cast<std::size_t>(p->room), MADV_WILLNEED);
    return;
  }
  if (!device_.is_gpu() || p->expected) return;
  Block block(new_block(bytes, device_, category));
  if (copies_) {
    copies_->follow(copies_->in, *p);  // earlier kernels may still use the block
    if constexpr (kWithCuda)
      cuda::rt::copy(block->data, p->data, bytes, cuda::rt::CopyKind::to_device,
                     copies_->in.handle());
    p->copied.record(copies_->in);
    block->used_on.add(copies_->in.id());
  }
  p->expected = block.release();
}

void OffloadMemory::load(Place* p, Storage& s, Category category) {
  moved_ += s.bytes;
  if (device_.is_gpu()) {
    expect(p, s.bytes, category);
    if (copies_) Copies::join(copies_->in, *p, *p->expected);
    return hand_block(std::exchange(p->expected, nullptr), s);
  }
  Storage* const block = new_block(s.bytes, device_, category);
  if (file_) copy_bytes(block->data, p->data, s.bytes);
  hand_block(block, s);
}

}  // namespace weft
