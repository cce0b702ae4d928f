#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "weft/core/error.h"
#include "weft/distributed/world.h"

// Work of a rank that may take longer than a collective may: reading and writing files.
namespace weft::distributed {

/// A further thread of a rank. Throws Error if the system has none: "op: the system has no thread
/// for `purpose` of rank r".
template <class F>
std::thread rank_thread(int rank, const char* op, const char* purpose, F f) {
  try {
    return std::thread(std::move(f));
  } catch (const std::system_error&) {
    throw Error(message("{}: the system has no thread for {} of rank {}", op, purpose, rank),
                Fault::system);
  }
}

/// The time between the collectives in which ranks ask each other who still works: a small part of
/// the wait so far. Rank 0 logs a line each time as long as WorldOptions::timeout_s passes.
class Pauses {
 public:
  /// "`op`: ranks have waited 12 s for rank 3 to `work`".
  Pauses(const World& world, std::string op, std::string work)
      : world_(world), op_(std::move(op)), work_(std::move(work)) {}
  /// `rank`: the one that works.
  void next(int rank);

 private:
  using Clock = std::chrono::steady_clock;
  const World& world_;
  const std::string op_, work_;
  const Clock::time_point begin_ = Clock::now();
  int lines_ = 1;
};

/// Every rank calls it: returns when all have run f(), which takes as long as it takes and must use
/// no collective. Meanwhile the ranks ask each other in short collectives, so that a rank that is
/// lost ends the job as in any collective. An error of f() reaches its own rank alone, when all
/// have ended; callers agree on it afterwards. `op` and `work` are those of Pauses.
void take_time(World& world, const char* op, const char* work, const std::function<void()>& f);

}  // namespace weft::distributed
