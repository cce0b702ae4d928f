#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "weft/distributed/process_watch.h"

namespace weft::distributed::process_watch_test {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Child {
  pid_t pid = fork();
  Child() {
    REQUIRE(pid >= 0);
    if (pid > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  ~Child() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  ProcessWatch::Process process() const { return {pid, ProcessWatch::Process::own().names}; }
};

// The first rank that has ended; -1 if none within the time.
int first_to_end(ProcessWatch& watch, milliseconds time) {
  for (const auto begin = Clock::now(); Clock::now() - begin < time;) {
    if (const int rank = watch.ended(); rank >= 0) return rank;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return -1;
}

TEST_CASE("process_watch: a process that ends is returned once, after what it had sent") {
  const Child first, second, third;
  ProcessWatch watch;
  if (!watch.add(3, first.process())) {
    MESSAGE("skipped: the kernel has no process descriptors, or forbids them");
    return;
  }
  CHECK(watch.add(5, second.process()));
  CHECK(watch.add(7, third.process()));
  CHECK(first_to_end(watch, milliseconds(150)) == -1);
  const auto killed = Clock::now();
  kill(second.pid, SIGKILL);
  // A zombie, as a killed rank is until its launcher calls waitpid().
  CHECK(first_to_end(watch, milliseconds(60000)) == 5);
  CHECK(Clock::now() - killed >= milliseconds(100));
  CHECK(first_to_end(watch, milliseconds(150)) == -1);
  kill(first.pid, SIGSTOP);
  CHECK(first_to_end(watch, milliseconds(150)) == -1);
  kill(third.pid, SIGKILL);
  CHECK(first_to_end(watch, milliseconds(60000)) == 7);
}

TEST_CASE("process_watch: a process of another PID namespace is not watched") {
  const Child child;
  ProcessWatch watch;
  ProcessWatch::Process elsewhere = child.process();
  ++elsewhere.names;
  CHECK(!watch.add(1, elsewhere));
  CHECK(!watch.add(2, {}));
  kill(child.pid, SIGKILL);
  CHECK(first_to_end(watch, milliseconds(300)) == -1);
}

TEST_CASE("process_watch: nothing to watch") {
  ProcessWatch watch;
  CHECK(watch.ended() == -1);
}

}  // namespace weft::distributed::process_watch_test
