// X3: the energy monitor with counters that the test moves.
#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "weft/core/energy.h"
#include "weft/tests/temp_folder.h"

namespace weft::energy_test {

namespace {

struct Dial {
  std::uint64_t microjoules = 0, range = 0;
  bool broken = false;
  int reads = 0;
};

class FakeCounter : public EnergyCounter {
 public:
  explicit FakeCounter(Dial& dial) : dial_(dial) {}
  std::optional<std::uint64_t> read() override {
    ++dial_.reads;
    if (dial_.broken) return std::nullopt;
    return dial_.microjoules;
  }
  std::uint64_t range() const override { return dial_.range; }

 private:
  Dial& dial_;
};

template <class... Dials>
EnergyMonitor monitor_of(Dials&... dials) {
  EnergyCounters counters;
  (counters.push_back(std::make_unique<FakeCounter>(dials)), ...);
  return EnergyMonitor(std::move(counters));
}

void write(const std::string& file, const std::string& text) {
  std::ofstream(file) << text << "\n";
}

}  // namespace

TEST_CASE("energy: laps and total exclude evaluation and saving") {
  Dial dial{.microjoules = 7'000'000};
  EnergyMonitor m = monitor_of(dial);
  CHECK(m.available());
  dial.microjoules += 1'000'000;  // before training
  m.resume();
  dial.microjoules += 2'500'000;
  CHECK(m.lap() == 2.5);
  dial.microjoules += 500'000;
  m.pause();
  dial.microjoules += 64'000'000;  // an evaluation
  CHECK(m.total() == 3);
  m.pause();  // saving, during the evaluation
  dial.microjoules += 32'000'000;
  m.resume();
  m.resume();
  dial.microjoules += 250'000;
  m.resume();
  CHECK(m.lap() == 0.75);
  CHECK(m.lap() == 0);
  m.pause();
  dial.microjoules += 8'000'000;
  CHECK(m.lap() == 0);
  CHECK(m.total() == 3.25);
}

TEST_CASE("energy: several counters add up and each wraps at its own range") {
  Dial a{.microjoules = 900, .range = 1000}, b{.microjoules = 5, .range = 64}, c{.microjoules = 50};
  EnergyMonitor m = monitor_of(a, b, c);
  m.resume();
  a.microjoules = 300;  // 400 further
  b.microjoules = 4;    // 63 further
  c.microjoules = 51;   // 1 further
  CHECK(m.lap() == 464e-6);
  a.microjoules = 300;
  b.microjoules = 64;
  CHECK(m.lap() == 60e-6);
  // A counter without a range that decreases was reset, so the energy of this lap is unknown.
  c.microjoules = 10;
  CHECK(m.lap() == 0);
  c.microjoules = 12;
  CHECK(m.lap() == 2e-6);
  CHECK(m.total() == 526e-6);
}

TEST_CASE("energy: a long run loses no precision") {
  Dial dial{.microjoules = 0};
  EnergyMonitor m = monitor_of(dial);
  m.resume();
  dial.microjoules = 9'000'000'000'000'000;  // 2.5 MWh
  CHECK(m.lap() == 9e9);
  dial.microjoules += 1;
  CHECK(m.lap() == 1e-6);
}

TEST_CASE("energy: without a counter every call is allowed and counts nothing") {
  EnergyMonitor m;
  CHECK_FALSE(m.available());
  m.pause();
  m.resume();
  CHECK(m.lap() == 0);
  m.pause();
  CHECK(m.total() == 0);
}

TEST_CASE("energy: a counter that fails ends the count and is not read again") {
  Dial good{.microjoules = 1000}, bad{.microjoules = 0};
  EnergyMonitor m = monitor_of(good, bad);
  m.resume();
  good.microjoules += 1'000'000;
  CHECK(m.lap() == 1);
  bad.broken = true;
  m.lap();
  CHECK_FALSE(m.available());
  const int reads = bad.reads;
  m.pause();
  m.resume();
  CHECK(m.lap() == 0);
  CHECK(bad.reads == reads);
}

TEST_CASE("energy: the power zones of Linux") {
  const test::TempFolder root;
  const auto zone = [&](const std::string& name, const std::string& label,
                        const std::string& energy) {
    const std::string folder = root / name;
    std::filesystem::create_directories(folder);
    write(folder + "/name", label);
    write(folder + "/max_energy_range_uj", "262143328850");
    if (!energy.empty()) write(folder + "/energy_uj", energy);
    return folder + "/energy_uj";
  };
  CHECK(energy_counters(kCpu, root.path()).empty());
  CHECK(energy_counters(kCpu, root / "nowhere").empty());
  const std::string package = zone("intel-rapl:0", "package-0", "262143328000");
  const std::string memory = zone("intel-rapl:0:1", "dram", "10");
  const std::string other = zone("intel-rapl:1", "package-1", "20");
  const std::string cores = zone("intel-rapl:0:0", "core", "0");          // part of package-0
  const std::string platform = zone("intel-rapl:2", "psys", "0");         // contains all of them
  const std::string again = zone("intel-rapl-mmio:0", "package-0", "0");  // package-0 again
  zone("intel-rapl:3", "package-3", "");  // not readable for this user
  zone("dtpm", "package-4", "0");
  EnergyCounters counters = energy_counters(kCpu, root.path());
  CHECK(counters.size() == 3);
  EnergyMonitor m(std::move(counters));
  m.resume();
  write(package, "150");  // wrapped at its range: 850 + 150
  write(memory, "30");
  write(other, "20");
  for (const std::string& file : {cores, platform, again}) write(file, "99000000");
  CHECK(m.lap() == 1020e-6);
  CHECK(energy_counters(kMeta).empty());
}

}  // namespace weft::energy_test
