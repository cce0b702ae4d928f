#include "weft/examples/common/interrupt.h"

#include <unistd.h>

#include <csignal>

namespace weft::train {
namespace {

volatile std::sig_atomic_t requested = 0;

void on_signal(int) {
  if (requested) _exit(130);
  requested = 1;
}

}  // namespace

void catch_interrupts() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

bool interrupted() { return requested != 0; }

}  // namespace weft::train
