#include "weft/train/launch.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
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

// A reader that exits, such as head, has what it wanted.
bool reader_is_gone() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

// Output that is lost, on a full disk for example, is an error.
void check_output() {
  errno = 0;
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  const int reason = errno;
  if (!lost || reader_is_gone()) return;
  throw Error(message("standard output cannot be written{}",
                      reason ? message(" ({})", std::strerror(reason)) : std::string()),
              Fault::system);
}

}  // namespace

int guarded(const std::string& program, const std::function<int()>& f) try {
  outlive_readers();
  set_log_handler([](std::string_view line) {
    // Report at once why one rank failed: the others may notice only later.
    last_logged().set(line);
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  });
  const int status = f();
  if (status == 0) check_output();
  return status;
} catch (const Error& e) {
  if (last_logged().is(e.what())) return static_cast<int>(e.fault());
  return end_process(program, nullptr, e);
} catch (const std::exception& e) {
  return end_process(program, nullptr, e);
}

}  // namespace weft::train
