#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/device.h"

namespace weft {

/// A counter of the energy used by one part of the machine.
class EnergyCounter {
 public:
  virtual ~EnergyCounter() = default;
  /// Microjoules since an arbitrary moment; nullopt when it cannot be read.
  virtual std::optional<std::uint64_t> read() = 0;
  /// The counter wraps to 0 after this value; 0: it does not wrap.
  virtual std::uint64_t range() const { return 0; }
};

using EnergyCounters = std::vector<std::unique_ptr<EnergyCounter>>;

/// The counters of the device. CPU: the packages and their memory in Linux's powercap folder, as
/// far as this user may read them. GPU: its own counter. Empty where there are none.
EnergyCounters energy_counters(Device device, const std::string& powercap = "/sys/class/powercap");

/// Sums the counters while it is not paused; it starts paused. A counter that wraps must be read at
/// least once per wrap. Without counters, or after one of them fails, all calls are allowed and
/// report nothing.
class EnergyMonitor {
 public:
  explicit EnergyMonitor(EnergyCounters counters = {});
  bool available() const { return !counters_.empty(); }
  /// Starts counting; does nothing when already counting.
  void resume();
  void pause();
  /// Joules since the last lap() or the start.
  double lap();
  /// Joules since the start.
  double total();

 private:
  void collect();

  EnergyCounters counters_;
  std::vector<std::uint64_t> last_;  ///< last value of each counter
  bool running_ = false;
  std::uint64_t microjoules_ = 0, at_lap_ = 0;
};

}  // namespace weft
