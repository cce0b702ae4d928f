#pragma once
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/core/error.h"

namespace weft::test {

/// Keeps the log lines of all threads in place of printing them, until the end of the scope.
class LogLines {
 public:
  LogLines() {
    lines().clear();
    set_log_handler([](std::string_view s) {
      const std::lock_guard lock(mutex());
      lines().emplace_back(s);
    });
  }
  ~LogLines() { set_log_handler(nullptr); }
  LogLines(const LogLines&) = delete;

  std::vector<std::string> taken() const {
    const std::lock_guard lock(mutex());
    return std::exchange(lines(), {});
  }

 private:
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static std::vector<std::string>& lines() {
    static std::vector<std::string> all;
    return all;
  }
};

}  // namespace weft::test
