#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

namespace weft::test {

/// Discards standard output and error while it lives, because a trainer prints.
class Silence {
 public:
  Silence() {
    std::fflush(stdout);
    const int nowhere = ::open("/dev/null", O_WRONLY);
    for (int i = 0; i < 2; ++i) {
      before_[i] = ::dup(STDOUT_FILENO + i);
      ::dup2(nowhere, STDOUT_FILENO + i);
    }
    ::close(nowhere);
  }
  ~Silence() {
    std::fflush(stdout);
    for (int i = 0; i < 2; ++i) {
      ::dup2(before_[i], STDOUT_FILENO + i);
      ::close(before_[i]);
    }
  }
  Silence(const Silence&) = delete;

 private:
  int before_[2];
};

}  // namespace weft::test
