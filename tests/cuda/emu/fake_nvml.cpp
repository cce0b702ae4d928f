// Replaces the monitoring library of NVIDIA's driver by one GPU whose counter the test sets.
#include <cstring>

extern "C" {

unsigned long long fake_millijoules = 0;
int fake_starts = 0;

int nvmlInit_v2() {
  ++fake_starts;
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** gpu) {
  if (fake_starts == 0) return 1;                           // not initialised
  if (std::strcmp(address, "0000:08:00.0") != 0) return 6;  // not found
  *gpu = &fake_millijoules;
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* gpu, unsigned long long* millijoules) {
  if (gpu != &fake_millijoules) return 2;
  *millijoules = fake_millijoules;
  return 0;
}
}
