#include "weft/train/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <iterator>
#include <mutex>

#include "weft/core/signal_stack.h"

namespace weft::train {
namespace {

volatile std::sig_atomic_t requested = 0, insisted = 0, hung_up = 0;

void on_signal(int) {
  if (insisted) _exit(130);
  requested = 1;
  insisted = 1;
}

// The shell and the kernel both report a closed terminal, so a second SIGHUP is no second request.
void on_hangup(int) {
  requested = 1;
  hung_up = 1;
}

// mpirun forwards SIGUSR1; after Ctrl-C it kills its processes within a second.
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
struct sigaction before[std::size(kSignals)];
int scopes = 0;

std::mutex& mutex() {
  static std::mutex m;
  return m;
}

}  // namespace

InterruptScope::InterruptScope() {
  // Each thread needs its own stack for signal handlers.
  static thread_local const detail::SignalStack stack;
  const std::lock_guard lock(mutex());
  if (scopes++ > 0) return;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &before[i]);
    // A run started to survive its terminal (nohup) keeps ignoring SIGHUP.
    if (kSignals[i] == SIGHUP && before[i].sa_handler == SIG_IGN) continue;
    struct sigaction action = {};
    action.sa_handler = kSignals[i] == SIGHUP ? on_hangup : on_signal;
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptScope::~InterruptScope() {
  const std::lock_guard lock(mutex());
  if (--scopes > 0) return;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before[i], nullptr);
  // The second SIGHUP of a closed terminal may come while the program returns from main.
  if (hung_up) signal(SIGHUP, SIG_IGN);
  requested = 0;
  insisted = 0;
  hung_up = 0;
}

// Else the next opened file would get the closed descriptor, and printf() would write into it.
void outlive_readers() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a write beyond the limit of a file's size is an error
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", O_RDWR);  // takes the lowest free one
}

bool interrupted() { return requested != 0; }

}  // namespace weft::train
