#include "weft/distributed/process_watch.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace weft::distributed {
namespace {

using std::chrono::milliseconds;

// The system call's number on x86 and Arm; older C libraries have no name for it.
constexpr long kPidfdOpen = 434;
// A look is a system call, too.
constexpr milliseconds kBetweenLooks{10};
constexpr milliseconds kOnTheWay{100};
constexpr int kCalls = 5;

}  // namespace

ProcessWatch::Process ProcessWatch::Process::own() {
  struct stat s = {};
  if (stat("/proc/self/ns/pid", &s) != 0) return {};
  return {getpid(), s.st_ino};
}

ProcessWatch::~ProcessWatch() {
  for (const Watched& w : watched_)
    if (w.descriptor >= 0) close(w.descriptor);
}

bool ProcessWatch::add(int rank, const Process& process) {
  if (process.names == 0 || process.names != Process::own().names) return false;
  const auto descriptor = static_cast<int>(syscall(kPidfdOpen, process.pid, 0));
  if (descriptor >= 0)
    watched_.push_back({rank, descriptor});
  else if (errno == ESRCH)
    watched_.push_back({rank, -1, Clock::now()});
  else
    return false;
  return true;
}

void ProcessWatch::look() {
  std::vector<pollfd> polled;
  for (const Watched& w : watched_) polled.push_back({w.descriptor, POLLIN, 0});
  if (poll(polled.data(), polled.size(), 0) <= 0) return;
  for (std::size_t i = 0; i < polled.size(); ++i)
    if (polled[i].revents & POLLNVAL)  // the program has closed it
      watched_[i].descriptor = -1;
    else if (polled[i].revents & POLLIN && watched_[i].ended_at == Clock::time_point{})
      watched_[i].ended_at = looked_at_;
}

int ProcessWatch::ended() {
  if (watched_.empty()) return -1;
  const Clock::time_point now = Clock::now();
  if (now - looked_at_ >= kBetweenLooks) {
    looked_at_ = now;
    look();
  }
  for (auto w = watched_.begin(); w != watched_.end(); ++w) {
    if (w->ended_at == Clock::time_point{}) continue;
    if (++w->calls < kCalls || now - w->ended_at < kOnTheWay) continue;
    const int rank = w->rank;
    if (w->descriptor >= 0) close(w->descriptor);
    watched_.erase(w);
    return rank;
  }
  return -1;
}

}  // namespace weft::distributed
