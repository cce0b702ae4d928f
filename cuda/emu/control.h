#pragma once
#include <atomic>
#include <cstdint>

namespace weft::emu {

/// What a test may change about the imitated GPUs.
struct Control {
  /// Streams run what they are given at once. Off, they run it as late as they may: when somebody
  /// waits for it. A missing wait then reads what was there before.
  bool run_at_once = false;
  /// An access of the host to device memory faults. It costs two system calls for each block at
  /// each wait. Switched on again, it holds from the end of the next kernel or copy on.
  bool host_faults = true;
  /// Memory of each device.
  std::int64_t memory_bytes = std::int64_t{4} << 30;
};
extern Control control;
/// What every communicator of the imitated NCCL says has gone wrong; null: nothing.
extern std::atomic<const char*> nccl_failure;

/// How many GPUs are imitated; WEFT_EMU_DEVICES in the environment overrides it.
inline constexpr int kDevices = 2;

}  // namespace weft::emu
