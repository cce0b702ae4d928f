#pragma once
#include <chrono>
#include <cstdint>
#include <vector>

namespace weft::distributed {

/// Notices when other processes of this machine end, for transports that do not report it. Does
/// nothing where the kernel has no process descriptors (pidfd_open, Linux 5.3) or forbids them.
class ProcessWatch {
 public:
  /// What another process needs to watch this one; trivially copyable, so it can be sent.
  struct Process {
    int pid = 0;
    std::uint64_t names = 0;  ///< the PID namespace, in which pid means this process
    static Process own();
  };

  ProcessWatch() = default;
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  /// Watches the process of this rank. Returns false if it cannot, as for a process of another PID
  /// namespace (a container).
  bool add(int rank, const Process& process);
  /// A rank whose process has ended, once each; -1: none. The caller reads what the ranks have sent
  /// between calls: a rank is returned 5 calls and 100 ms after its end was noticed, so that what
  /// it had sent has been read.
  int ended();

 private:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    int rank, descriptor;          // -1: none
    Clock::time_point ended_at{};  // zero: it runs
    int calls = 0;                 // since then
  };
  void look();

  std::vector<Watched> watched_;
  Clock::time_point looked_at_{};
};

}  // namespace weft::distributed
