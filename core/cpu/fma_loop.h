#pragma once
#include <cstdint>

namespace weft::cpu {

/// A loop of nothing but fused multiply-adds on registers: what the multipliers of this CPU can do.
struct FmaLoop {
  const char* name;
  void (*run)(std::int64_t steps);
  double flops_per_step;
};

/// The one with the widest registers that this CPU has.
FmaLoop fma_loop();

}  // namespace weft::cpu
