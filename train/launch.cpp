#include "weft/train/launch.h"

#include <cstdio>
#include <mutex>
#include <string_view>

#include "weft/core/error.h"
#include "weft/train/interrupt.h"

namespace weft::train {
namespace {

/// The last logged line; ranks that are threads log concurrently.
class LastLogged {
 public:
  void set(std::string_view line) {
    const std::lock_guard lock(mutex_);
    line_ = line;
  }
  bool is(std::string_view line) {
    const std::lock_guard lock(mutex_);
    return line_ == line;
  }

 private:
  std::mutex mutex_;
  std::string line_;
};

LastLogged& last_logged() {
  static LastLogged line;
  return line;
}

}  // namespace

int guarded(const std::string& program, const std::function<int()>& f) try {
  outlive_readers();
  set_log_handler([](std::string_view line) {
    // Report at once why one rank failed: the others may notice only later.
    last_logged().set(line);
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  });
  return f();
} catch (const Error& e) {
  if (last_logged().is(e.what())) return static_cast<int>(e.fault());
  return end_process(program, nullptr, e);
} catch (const std::exception& e) {
  return end_process(program, nullptr, e);
}

}  // namespace weft::train
