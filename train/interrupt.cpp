#include "weft/train/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>

#include "weft/core/signal_stack.h"

namespace weft::train {
namespace {

volatile std::sig_atomic_t requested = 0, insisted = 0;

void on_signal(int) {
  if (insisted) _exit(130);
  requested = 1;
  insisted = 1;
}

// The shell and the kernel both say that a terminal has closed: twice is not more than once.
void on_hangup(int) { requested = 1; }

}  // namespace

// Ranks that are threads call this one by one: each needs a stack for the handlers.
void catch_interrupts() {
  static thread_local const detail::SignalStack stack;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action,
            nullptr);  // which mpirun hands on; after Ctrl-C it kills within a second
  // A terminal that is closed, unless the run was told to outlive it (nohup).
  struct sigaction before = {};
  sigaction(SIGHUP, nullptr, &before);
  action.sa_handler = on_hangup;
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

// What is closed would be the number of the next file that is opened, and printf() write into it.
void outlive_readers() {
  signal(SIGPIPE, SIG_IGN);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", O_RDWR);  // takes the lowest free number
}

bool interrupted() { return requested != 0; }

void forget_interrupt() {
  requested = 0;
  insisted = 0;
}

}  // namespace weft::train
