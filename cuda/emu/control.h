#pragma once
#include <atomic>
#include <cstdint>

namespace weft::emu {

/// Settings of the emulated GPUs that a test may change.
struct Control {
  /// Streams execute work at submission. When off, they execute it as late as possible, when the
  /// host waits for it, so that a missing wait reads old data.
  bool run_at_once = false;
  /// A host access to device memory faults. Costs two system calls per block at each wait. When
  /// switched on again, it takes effect at the end of the next kernel or copy.
  bool host_faults = true;
  /// Memory per device.
  std::int64_t memory_bytes = std::int64_t{4} << 30;
};
extern Control control;
/// Error text that every communicator of the emulated NCCL reports; null: no error.
extern std::atomic<const char*> nccl_failure;

/// Number of emulated GPUs; the environment variable WEFT_EMU_DEVICES overrides it.
inline constexpr int kDevices = 2;

}  // namespace weft::emu
