#include "weft/distributed/deadline.h"

#include <chrono>
#include <cstdlib>
#include <utility>

namespace weft::distributed {

Deadline::Deadline(double s, std::function<void()> too_late)
    : too_late_(std::move(too_late)), thread_([this, s] { watch(s); }) {}

Deadline::~Deadline() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Deadline::watch(double s) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, std::chrono::duration<double>(s), [this] { return over_; })) return;
  too_late_();
  std::_Exit(1);
}

}  // namespace weft::distributed
