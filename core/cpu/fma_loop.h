#pragma once
#include <cstdint>

namespace weft::cpu {

/// A loop of fused multiply-adds on registers only: the peak rate of this CPU.
struct FmaLoop {
  const char* name;
  void (*run)(std::int64_t steps);
  double flops_per_step;
};

/// The loop with the widest registers of this CPU that WEFT_ISA allows.
FmaLoop fma_loop();

}  // namespace weft::cpu
