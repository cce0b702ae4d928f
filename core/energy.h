#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/device.h"

namespace weft {

/// A counter of the energy that some part of the machine has used.
class EnergyCounter {
 public:
  virtual ~EnergyCounter() = default;
  /// Microjoules since some moment; nothing when it cannot be read.
  virtual std::optional<std::uint64_t> read() = 0;
  /// Behind this value it starts again from 0; 0: it does not.
  virtual std::uint64_t range() const { return 0; }
};

using EnergyCounters = std::vector<std::unique_ptr<EnergyCounter>>;

/// The counters of what computes on the device: for the CPU those of the processors and their
/// memory in Linux's folder of power zones, as far as this user may read them; for a GPU its own.
/// None where there are none.
EnergyCounters energy_counters(Device device, const std::string& powercap = "/sys/class/powercap");

/// Adds up what counters count while it is not paused; it begins paused. A counter that starts
/// again from 0 must be read more often than it does so. Without counters, or when one of them
/// fails, all calls are allowed and there is nothing to report.
class EnergyMonitor {
 public:
  explicit EnergyMonitor(EnergyCounters counters = {});
  bool available() const { return !counters_.empty(); }
  /// Counts from here on. Nothing happens when it does so already.
  void resume();
  void pause();
  /// Joules since the last lap, or since the beginning.
  double lap();
  /// Joules since the beginning.
  double total();

 private:
  void collect();

  EnergyCounters counters_;
  std::vector<std::uint64_t> last_;  ///< of each counter
  bool running_ = false;
  std::uint64_t microjoules_ = 0, at_lap_ = 0;
};

}  // namespace weft
