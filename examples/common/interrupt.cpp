#include "weft/examples/common/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <cstddef>

namespace weft::train {
namespace {

volatile std::sig_atomic_t requested = 0;

void on_signal(int) {
  if (requested) _exit(130);
  requested = 1;
}

}  // namespace

// On a stack of its own: oneDNN's products use the stack pointer for their packed operands, and a
// handler that the kernel runs "below" it writes into the heap.
void catch_interrupts() {
  constexpr std::size_t kStack = 64 << 10;
  alignas(16) static char memory[kStack];
  stack_t stack = {};
  stack.ss_sp = memory;
  stack.ss_size = kStack;
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action,
            nullptr);  // which mpirun hands on; after Ctrl-C it kills within a second
}

bool interrupted() { return requested != 0; }

}  // namespace weft::train
