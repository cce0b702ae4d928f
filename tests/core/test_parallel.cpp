#include <doctest/doctest.h>
#include <execinfo.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "weft/core/cgroup.h"
#include "weft/core/default_threads.h"
#include "weft/core/parallel.h"
#include "weft/core/random.h"
#include "weft/core/signal_stack.h"
#include "weft/tests/sanitized.h"
#include "weft/tests/support.h"
#include "weft/tests/temp_folder.h"

namespace {
std::atomic<bool> large_machine{false};
}

// Replaces libc's function: simulates a machine with 1,500 processors on request. Like Linux, it
// refuses a set that is smaller than the machine's.
extern "C" int sched_getaffinity(pid_t pid, std::size_t size, cpu_set_t* set) noexcept {
  std::memset(set, 0, size);
  if (!large_machine) return syscall(SYS_sched_getaffinity, pid, size, set) < 0 ? -1 : 0;
  if (size * 8 < 2048) return errno = EINVAL, -1;
  for (std::size_t p = 0; p < 1500; ++p) CPU_SET_S(p, size, set);
  return 0;
}

namespace weft::parallel_test {
namespace {

constexpr std::int64_t kHeavy = 1 << 20;  // enough work for threads even with two items

}  // namespace

TEST_CASE("parallel: every index runs once in contiguous ranges") {
  for (const int threads : {1, 2, 3, 7})
    for (const std::int64_t n : {0, 1, 2, 3, 6, 7, 8, 100, 1001})
      for (const std::int64_t work : {std::int64_t{1}, kHeavy}) {
        CAPTURE(threads);
        CAPTURE(n);
        const test::RestoreThreads scope(threads);
        const auto seen = std::make_unique<std::atomic<int>[]>(static_cast<std::size_t>(n) + 1);
        std::atomic<int> calls{0}, wrong{0};
        parallel_for(n, work, [&](std::int64_t begin, std::int64_t end) {
          ++calls;
          wrong += !(0 <= begin && begin < end && end <= n);
          for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
        });
        CHECK(wrong == 0);
        for (std::int64_t i = 0; i < n; ++i) CHECK(seen[static_cast<std::size_t>(i)] == 1);
        CHECK(seen[static_cast<std::size_t>(n)] == 0);
        if (n == 0)
          CHECK(calls == 0);
        else if (work == 1)
          CHECK(calls == 1);
        else  // at least one range per thread, and a few more if there is enough work
          CHECK(calls >= std::min<std::int64_t>(n, threads));
      }
}

TEST_CASE("parallel: heavy work runs on several threads") {
  const test::RestoreThreads scope(3);
  std::atomic<int> there{0};
  std::mutex mutex;
  std::set<std::thread::id> who;
  parallel_for(3, kHeavy, [&](std::int64_t, std::int64_t) {
    // Each range waits for the others: on fewer threads only the deadline would end this.
    ++there;
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (there < 3 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    const std::lock_guard lock(mutex);
    who.insert(std::this_thread::get_id());
  });
  CHECK(who.size() == 3);
}

TEST_CASE("parallel: a delayed thread delays only its own range") {
  const test::RestoreThreads scope(2);
  std::atomic<std::int64_t> done{0};
  parallel_for(64, kHeavy, [&](std::int64_t begin, std::int64_t end) {
    // The thread with the first index waits until the other thread has done all the rest.
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (begin == 0 && done < 64 - end && std::chrono::steady_clock::now() < give_up)
      std::this_thread::yield();
    if (begin == 0) CHECK(done == 64 - end);
    done += end - begin;
  });
  CHECK(done == 64);
}

TEST_CASE("parallel: a nested loop runs on its own thread") {
  const test::RestoreThreads scope(3);
  std::atomic<int> inner_calls{0}, elsewhere{0};
  parallel_for(3, kHeavy, [&](std::int64_t, std::int64_t) {
    const auto me = std::this_thread::get_id();
    parallel_for(100, kHeavy, [&](std::int64_t begin, std::int64_t end) {
      ++inner_calls;
      elsewhere += std::this_thread::get_id() != me || begin != 0 || end != 100;
    });
  });
  CHECK(inner_calls == 3);
  CHECK(elsewhere == 0);
  // The next outer loop is parallel again.
  std::atomic<int> calls{0};
  parallel_for(3, kHeavy, [&](std::int64_t, std::int64_t) { ++calls; });
  CHECK(calls == 3);
}

TEST_CASE("parallel: several threads may run loops at once") {
  const test::RestoreThreads scope(2);
  std::atomic<std::int64_t> total{0};
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i)
        parallel_for(10, kHeavy,
                     [&](std::int64_t begin, std::int64_t end) { total += end - begin; });
    });
  for (std::thread& t : threads) t.join();
  CHECK(total == 600);
}

TEST_CASE("parallel: threads with a ThreadLimit run loops concurrently on their own workers") {
  const test::RestoreThreads scope(7);
  std::atomic<int> there{0}, counts_right{0};
  const auto rank = [&] {
    const ThreadLimit share(2);
    counts_right += num_threads() == 2;
    for (int round = 1; round <= 5; ++round)
      parallel_for(2, kHeavy, [&](std::int64_t, std::int64_t) {
        // Three threads with two workers each: six wait for one another.
        ++there;
        const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (there < 6 * round && std::chrono::steady_clock::now() < give_up)
          std::this_thread::yield();
        CHECK(there >= 6 * round);
      });
    {
      const ThreadLimit inner(1);
      counts_right += num_threads() == 1;
    }
    counts_right += num_threads() == 2;
  };
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k) threads.emplace_back(rank);
  for (std::thread& t : threads) t.join();
  CHECK(counts_right == 9);
  CHECK(num_threads() == 7);
  CHECK(test::error_of([] { const ThreadLimit none(0); }) ==
        "ThreadLimit: must be at least 1, got 0");
}

TEST_CASE("parallel: num_threads, set_num_threads and set_default_threads") {
  CHECK(num_threads() >= 1);
  {
    const test::RestoreThreads scope(5);
    CHECK(num_threads() == 5);
    set_default_threads(3);
    CHECK(num_threads() == 5);
    int elsewhere = 0;
    std::thread([&] { elsewhere = num_threads(); }).join();
    CHECK(elsewhere == 5);
  }
  CHECK(test::error_of([] { set_num_threads(0); }) == "set_num_threads: must be at least 1, got 0");
  CHECK(test::error_of([] { set_num_threads(-3); }) ==
        "set_num_threads: must be at least 1, got -3");
  CHECK(test::error_of([] { set_num_threads(8193); }) ==
        "set_num_threads: must be at most 8192, got 8193");
  CHECK(test::error_of([] { set_default_threads(0); }) ==
        "set_default_threads: must be at least 1, got 0");
}

TEST_CASE("parallel: workers do not block synchronous signals or a profiler's") {
  const test::RestoreThreads scope(3);
  std::atomic<int> there{0}, wrong{0};
  const std::thread::id here = std::this_thread::get_id();
  parallel_for(3, kHeavy, [&](std::int64_t, std::int64_t) {
    ++there;
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (there < 3 && std::chrono::steady_clock::now() < late) std::this_thread::yield();
    if (std::this_thread::get_id() == here) return;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF})
      wrong += sigismember(&blocked, s) != 0;
    for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGUSR1})
      wrong += !sigismember(&blocked, s);
  });
  CHECK(there == 3);
  CHECK(wrong == 0);
}

TEST_CASE("parallel: each thread has a signal stack and keeps an existing one") {
  const auto there = [] {
    stack_t now = {};
    sigaltstack(nullptr, &now);
    return now;
  };
  std::set<void*> stacks;
  std::mutex mutex;
  std::latch all(2);
  const auto take = [&] {
    const void* const before = there().ss_sp;
    {
      const detail::SignalStack own, again;
      const stack_t now = there();
      CHECK(!(now.ss_flags & SS_DISABLE));
      {
        const std::lock_guard lock(mutex);
        stacks.insert(now.ss_sp);
      }
      all.arrive_and_wait();
    }
    CHECK(there().ss_sp == before);
  };
  std::thread other(take);
  take();
  other.join();
  CHECK(stacks.size() == 2);
}

namespace {

// Waits for the child; kills it after 30 s, if not even its alarm ended it.
int status_of(pid_t child) {
  int status = 0;
  for (int ms = 0; ms < 30'000; ++ms) {
    if (waitpid(child, &status, WNOHANG) == child) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(child, SIGKILL);
  CHECK(waitpid(child, &status, 0) == child);
  return status;
}

// Prints where a stuck child waits.
void print_stack_and_exit(int) {
  void* calls[64];
  backtrace_symbols_fd(calls, backtrace(calls, 64), STDERR_FILENO);
  _exit(2);
}

}  // namespace

TEST_CASE("parallel: a child of fork() runs its loops alone and waits for no worker") {
  // More threads than processors: after most loops some worker is still looking for work. Other
  // threads often hold the locks of the spare pools, of the large-block cache and of the seed. Not
  // with AddressSanitizer: a child of fork() waits for ever for a lock of the sanitizer's own heap
  // that another thread held.
  const test::RestoreThreads scope(32);
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  const auto repeat = [&](auto f) {
    if (!test::address_sanitized)
      others.emplace_back([&stop, f] {
        while (!stop) f();
      });
  };
  repeat([] { const ThreadLimit share(1); });
  repeat([] { Tensor::empty({1 << 18}, DType::f32); });
  repeat([] { manual_seed(1); });
  void* call;
  backtrace(&call, 1);  // the first call loads a library, which a stuck child could not
  int failed = 0;
  for (int i = 0; i < 100 && failed == 0; ++i) {
    std::atomic<int> calls{0};
    parallel_for(32, kHeavy, [&](std::int64_t, std::int64_t) { ++calls; });
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      signal(SIGALRM, print_stack_and_exit);
      alarm(20);
      std::atomic<std::int64_t> sum{0};
      const std::thread::id here = std::this_thread::get_id();
      bool alone = true;
      for (int k = 0; k < 3; ++k)
        parallel_for(32, kHeavy, [&](std::int64_t begin, std::int64_t end) {
          alone = alone && std::this_thread::get_id() == here;
          sum += end - begin;
        });
      const ThreadLimit share(2);  // takes the lock of the spare pools
      Tensor::empty({1 << 18}, DType::f32);
      manual_seed(2);
      _exit(sum == 96 && alone ? 0 : 1);
    }
    const int status = status_of(child);
    INFO("child " << i << " of 100: 1 is a wrong sum or another thread, 2 a child stuck for 20 s");
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    failed += status != 0;
  }
  stop = true;
  for (std::thread& other : others) other.join();
}

namespace {

// A folder in place of / with the kernel's files.
struct Machine {
  test::TempFolder folder;
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder / path).parent_path());
    std::ofstream(folder / path) << text;
  }
};

}  // namespace

TEST_CASE("parallel: cgroup v2 applies the tightest limit up from the process's own group") {
  const Machine m;
  CHECK_FALSE(detail::cgroup_limits(m.folder.path()).processors);
  CHECK_FALSE(detail::cgroup_limits(m.folder.path()).memory);
  m.write("proc/self/cgroup", "0::/jobs/mine\n");
  m.write("proc/self/mountinfo",
          "22 1 0:20 / /proc rw - proc proc rw\n"
          "30 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  m.write("sys/fs/cgroup/jobs/mine/cpu.max", "max 100000\n");
  m.write("sys/fs/cgroup/jobs/mine/memory.max", "max\n");
  CHECK_FALSE(detail::cgroup_limits(m.folder.path()).processors);
  CHECK_FALSE(detail::cgroup_limits(m.folder.path()).memory);
  m.write("sys/fs/cgroup/jobs/cpu.max", "150000 100000\n");
  m.write("sys/fs/cgroup/jobs/memory.max", "8589934592\n");
  m.write("sys/fs/cgroup/jobs/mine/memory.max", "1073741824\n");
  const detail::CgroupLimits limits = detail::cgroup_limits(m.folder.path());
  CHECK(limits.processors == 1.5);
  CHECK(limits.memory == std::int64_t{1} << 30);
  CHECK(allowed_processors(m.folder.path()) == std::min(2, allowed_processors("/nowhere")));
  m.write("sys/fs/cgroup/jobs/cpu.max", "20000 100000\n");
  CHECK(allowed_processors(m.folder.path()) == 1);
  m.write("proc/self/cgroup", "0::/pods.slice:cri:abc\n");  // a name may contain colons
  m.write("sys/fs/cgroup/pods.slice:cri:abc/cpu.max", "300000 100000\n");
  CHECK(detail::cgroup_limits(m.folder.path()).processors == 3);
}

TEST_CASE("parallel: cgroup v1, also in a container that sees only its own group") {
  const Machine m;
  m.write("proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n");
  m.write("proc/self/mountinfo",
          "31 30 0:28 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
          "32 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  m.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  m.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  m.write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
  m.write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "9223372036854771712\n");
  CHECK_FALSE(detail::cgroup_limits(m.folder.path()).processors);
  CHECK_FALSE(detail::cgroup_limits(m.folder.path()).memory);
  m.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n");
  m.write("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "4096\n");
  const detail::CgroupLimits limits = detail::cgroup_limits(m.folder.path());
  CHECK(limits.processors == 0.5);
  CHECK(limits.memory == 4096);
}

TEST_CASE("parallel: a machine with more than 1,024 processors") {
  large_machine = true;
  const int n = allowed_processors("/nowhere");
  large_machine = false;
  CHECK(n == 1500);
  CHECK(allowed_processors("/nowhere") < 1500);
}

TEST_CASE("parallel: deterministic mode can be switched on and off") {
  CHECK_FALSE(deterministic());
  set_deterministic(true);
  CHECK(deterministic());
  set_deterministic(false);
  CHECK_FALSE(deterministic());
}

}  // namespace weft::parallel_test
