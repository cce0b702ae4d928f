#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace weft::distributed {

/// Ends the process with status 1 if it still exists after `s` seconds; calls `too_late` first,
/// which says why. For calls of other libraries that may never return and cannot be cancelled.
class Deadline {
 public:
  Deadline(double s, std::function<void()> too_late);
  ~Deadline();
  Deadline(const Deadline&) = delete;

 private:
  void watch(double s);

  const std::function<void()> too_late_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace weft::distributed
