// The energy of a GPU, found by its address in the driver's monitoring library.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>

#include "weft/core/energy.h"
#include "weft/distributed/gpu_of_rank.h"
#include "weft/tests/cuda/gpu.h"
#include "weft/train/run_log.h"

namespace weft::energy_test {

TEST_CASE("X3: only the energy of the computing GPU counts") {
  setenv("WEFT_CUDA_LIBS", WEFT_FAKE_NVML, 1);
  // The emulated GPUs have reversed addresses: the library knows only cuda:1.
  CHECK(energy_counters(test::kGpu).empty());
  EnergyCounters counters = energy_counters({Device::Kind::cuda, 1});
  REQUIRE(counters.size() == 1);
  void* const library = dlopen(WEFT_FAKE_NVML "/libnvidia-ml.so.1", RTLD_NOW);
  REQUIRE(library != nullptr);
  auto* millijoules = static_cast<unsigned long long*>(dlsym(library, "fake_millijoules"));
  const auto* starts = static_cast<const int*>(dlsym(library, "fake_starts"));
  EnergyMonitor m(std::move(counters));
  *millijoules = 1000;
  m.resume();
  *millijoules += 2750;
  CHECK(m.lap() == 2.75);
  *millijoules += 1;
  CHECK(m.total() == 2.751);
  CHECK(*starts == 1);
  CHECK(energy_counters({Device::Kind::meta_cuda, 0}).empty());
}

TEST_CASE("energy: a meter is that of a GPU, whatever its number, or of a machine") {
  const std::string machine = distributed::machine_name();
  CHECK(train::meter_of(kCpu) == machine);
  CHECK(train::meter_of(test::kGpu) == machine + " 0000:09:00.0");
  CHECK(train::meter_of({Device::Kind::cuda, 1}) == machine + " 0000:08:00.0");
}

}  // namespace weft::energy_test
