#include "weft/core/energy.h"

#include <filesystem>
#include <fstream>
#include <utility>

#include "weft/core/dispatch.h"
#include "weft/core/kernels/cuda_runtime.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> number_in(const fs::path& file) {
  std::ifstream in(file);
  std::uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

/// A powercap zone of Linux: a folder with the files energy_uj and max_energy_range_uj.
class PowerZone : public EnergyCounter {
 public:
  explicit PowerZone(const fs::path& folder)
      : energy_(folder / "energy_uj"),
        range_(number_in(folder / "max_energy_range_uj").value_or(0)) {}
  std::optional<std::uint64_t> read() override { return number_in(energy_); }
  std::uint64_t range() const override { return range_; }

 private:
  fs::path energy_;
  std::uint64_t range_;
};

// A package zone includes its cores, so counting the zones inside it would count them twice. It
// does not include the memory. The zone of the whole platform includes all others.
bool counts(const fs::path& zone) {
  std::ifstream in(zone / "name");
  std::string name;
  in >> name;
  return name.starts_with("package") || name == "dram";
}

EnergyCounters power_zones(const std::string& powercap) {
  EnergyCounters out;
  std::error_code none;
  for (const fs::directory_entry& zone : fs::directory_iterator(powercap, none)) {
    if (!zone.path().filename().string().starts_with("intel-rapl:") || !counts(zone)) continue;
    auto counter = std::make_unique<PowerZone>(zone.path());
    if (counter->read()) out.push_back(std::move(counter));
  }
  return out;
}

class GpuEnergy : public EnergyCounter {
 public:
  explicit GpuEnergy(int index) : address_(cuda::rt::pci_address(index)) {}
  std::optional<std::uint64_t> read() override {
    std::uint64_t millijoules = 0;
    if (!cuda::rt::energy(address_, millijoules)) return std::nullopt;
    return millijoules * 1000;
  }

 private:
  // The driver's monitoring library numbers GPUs in its own order.
  std::string address_;
};

}  // namespace

EnergyCounters energy_counters(Device device, const std::string& powercap) {
  if (device.is_cpu()) return power_zones(powercap);
  EnergyCounters out;
  if constexpr (kWithCuda) {
    if (!device.is_cuda()) return out;
    auto counter = std::make_unique<GpuEnergy>(device.index);
    if (counter->read()) out.push_back(std::move(counter));
  }
  return out;
}

EnergyMonitor::EnergyMonitor(EnergyCounters counters)
    : counters_(std::move(counters)), last_(counters_.size()) {}

// Adds the increase of each counter since it was last read.
void EnergyMonitor::collect() {
  for (std::size_t i = 0; i < counters_.size(); ++i) {
    EnergyCounter& counter = *counters_[i];
    const std::optional<std::uint64_t> now = counter.read();
    if (!now) {
      counters_.clear();
      return;
    }
    const std::uint64_t before = std::exchange(last_[i], *now);
    if (!running_) continue;
    if (*now >= before)
      microjoules_ += *now - before;
    else if (before <= counter.range())
      microjoules_ += counter.range() - before + *now;
  }
}

void EnergyMonitor::resume() {
  if (running_) return;
  collect();
  running_ = true;
}

void EnergyMonitor::pause() {
  if (running_) collect();
  running_ = false;
}

double EnergyMonitor::lap() {
  if (running_) collect();
  return static_cast<double>(microjoules_ - std::exchange(at_lap_, microjoules_)) / 1e6;
}

double EnergyMonitor::total() {
  if (running_) collect();
  return static_cast<double>(microjoules_) / 1e6;
}

}  // namespace weft
