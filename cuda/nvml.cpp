// GPU energy from the monitoring library of NVIDIA's driver. Opened at first use; without the
// library there is no energy value.
#include <dlfcn.h>

#include <cstdlib>

#include "weft/core/kernels/cuda_runtime.h"

namespace weft::cuda::rt {
namespace {

// The C interface: every function returns 0 on success.
struct Nvml {
  using Gpu = void*;
  int (*start)() = nullptr;
  int (*find)(const char* pci_address, Gpu* gpu) = nullptr;
  int (*energy)(Gpu gpu, unsigned long long* millijoules) = nullptr;
  bool usable = false;

  Nvml() {
    constexpr const char* kName = "libnvidia-ml.so.1";
    void* file = nullptr;
    if (const char* folder = std::getenv("WEFT_CUDA_LIBS"))
      file = dlopen((std::string(folder) + "/" + kName).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!file) file = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
    if (!file) return;
    const auto load = [file](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, name));
      return function != nullptr;
    };
    usable = load(start, "nvmlInit_v2") && load(find, "nvmlDeviceGetHandleByPciBusId_v2") &&
             load(energy, "nvmlDeviceGetTotalEnergyConsumption") && start() == 0;
  }
};

}  // namespace

bool energy(const std::string& pci_address, std::uint64_t& millijoules) {
  static const Nvml nvml;
  Nvml::Gpu gpu = nullptr;
  unsigned long long value = 0;
  if (!nvml.usable || nvml.find(pci_address.c_str(), &gpu) != 0 || nvml.energy(gpu, &value) != 0)
    return false;
  millijoules = value;
  return true;
}

}  // namespace weft::cuda::rt
