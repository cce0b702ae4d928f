// Streams execute their work as late as possible, and device memory is host memory that only their
// work may access.
#include "weft/cuda/emu/driver.h"

#include <sys/mman.h>

#include <utility>

#include "weft/cuda/emu/control.h"
#include "weft/cuda/emu/stream.h"

namespace weft::emu {
namespace {

// Makes device memory accessible while it exists. At other times a host access faults here as with
// a GPU, unless control.host_faults is off.
class Access {
 public:
  Access() {
    if (driver().access++ == 0 && !driver().open) protect(true);
  }
  ~Access() {
    if (--driver().access == 0 && control.host_faults) protect(false);
  }
  Access(const Access&) = delete;

 private:
  static void protect(bool open) {
    driver().open = open;
    for (const auto& [p, block] : driver().blocks)
      mprotect(p, whole_pages(block.bytes), open ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
};

// All levels of the lock that this thread holds: unlock() and lock() let others in while it waits.
// Device memory that is accessible stays so: to change that for each wait would take most of the
// time of a test with ranks.
class Everything {
 public:
  void unlock() { levels_ = driver().mutex.release(); }
  void lock() {
    for (int i = 0; i < levels_; ++i) driver().mutex.lock();
  }

 private:
  int levels_ = 0;
};

void run_one(Queue& q) {
  const Work work = std::move(q.waiting.front());
  q.waiting.pop_front();
  q.running = true;
  q.runner = std::this_thread::get_id();
  const auto end = [&q] {
    q.running = false;
    ++q.finished;
    if (q.asleep > 0) q.ended.notify_all();
  };
  try {
    work();
  } catch (...) {
    end();
    throw;
  }
  end();
}

// The thread of a queue with prompt work, which lives as long as the process.
void run_promptly(Queue& q) {
  const std::lock_guard lock(driver().mutex);
  for (;;) {
    while (q.finished >= q.prompt) {
      Everything everything;
      q.wanted.wait(everything);
    }
    try {
      run_until(q, q.prompt);
    } catch (...) {
      q.error = std::current_exception();
    }
  }
}

}  // namespace

Driver& driver() {
  static Driver* d = new Driver;
  return *d;
}

void run_until(Queue& q, std::uint64_t until) {
  if (q.finished < until) {
    const Access access;
    while (q.finished < until) {
      if (q.running) {
        if (q.runner == std::this_thread::get_id()) return;
        Everything everything;
        ++q.asleep;
        q.ended.wait(everything);
        --q.asleep;
      } else if (q.waiting.empty()) {
        break;
      } else {
        run_one(q);
      }
    }
  }
  if (q.error) std::rethrow_exception(std::exchange(q.error, nullptr));
}

void submit(Queue& q, Work work, bool prompt) {
  const std::lock_guard lock(driver().mutex);
  if (q.recording) {
    q.recording->push_back(std::move(work));
    return;
  }
  q.waiting.push_back(std::move(work));
  ++q.submitted;
  if (prompt) {
    q.prompt = q.submitted;
    if (!std::exchange(q.has_thread, true)) std::thread([&q] { run_promptly(q); }).detach();
    q.wanted.notify_all();
  } else if (control.run_at_once) {
    run_until(q, q.submitted);
  }
}

void synchronize_queues(int device) {
  // Others may create streams while it waits.
  for (std::size_t i = 0; i < driver().queues.size(); ++i)
    if (Queue& q = *driver().queues[i]; q.device == device) run_until(q, q.submitted);
}

bool is_pinned(const void* p) {
  const auto& pinned = driver().pinned;
  auto* at = static_cast<char*>(const_cast<void*>(p));
  auto next = pinned.upper_bound(at);
  if (next == pinned.begin()) return false;
  --next;
  return at < next->first + next->second;
}

void submit(void* stream, std::function<void()> work) {
  submit(*static_cast<Queue*>(stream), std::move(work));
}

void submit_promptly(void* stream, std::function<void()> work) {
  submit(*static_cast<Queue*>(stream), std::move(work), true);
}

void while_others_run(const std::function<void()>& f) {
  Everything everything;
  everything.unlock();
  struct Relock {
    Everything& all;
    ~Relock() { all.lock(); }
  } const relock{everything};
  f();
}

void pass_time(double ms) {
  driver().passed +=
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms));
}

}  // namespace weft::emu
