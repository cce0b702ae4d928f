#include "weft/distributed/long_work.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>

#include "weft/distributed/agree.h"

namespace weft::distributed {

void Pauses::next(int rank) {
  const double waited = std::chrono::duration<double>(Clock::now() - begin_).count();
  if (world_.rank() == 0 && waited > lines_ * world_.timeout_s()) {
    log_line(message("{}: ranks have waited {} s for rank {} to {}", op_, std::llround(waited),
                     rank, work_));
    ++lines_;
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(waited / 16, 0.0005, 0.5)));
}

void take_time(World& world, const char* op, const char* work, const std::function<void()>& f) {
  if (world.size() == 1) return f();
  using Busy = std::array<std::int64_t, 1>;
  std::atomic<bool> busy{true};
  std::exception_ptr lost, failed;
  std::thread asks = rank_thread(world.rank(), op, "the other ranks' questions", [&] {
    try {
      for (Pauses pauses(world, op, work);;) {
        const std::vector<Busy> all = from_all(world, Busy{busy});
        const auto slow = std::find(all.begin(), all.end(), Busy{1});
        if (slow == all.end()) return;
        pauses.next(static_cast<int>(slow - all.begin()));
      }
    } catch (...) {
      lost = std::current_exception();
    }
  });
  try {
    f();
  } catch (...) {
    failed = std::current_exception();
  }
  busy = false;
  asks.join();
  if (failed) std::rethrow_exception(failed);
  if (lost) std::rethrow_exception(lost);
}

}  // namespace weft::distributed
