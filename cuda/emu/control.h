#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

namespace weft::emu {

/// What a stream of the emulated GPUs was given.
struct Command {
  enum class Kind : std::uint8_t { kernel, copy_in, copy_out, copy_on_device, record, wait };
  Kind kind;
  const void* stream;
  std::int64_t bytes = 0;       ///< of a copy
  const void* event = nullptr;  ///< that is recorded, or waited for
};

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
  /// Host memory that can be pinned, for all devices.
  std::int64_t pinned_bytes = std::int64_t{4} << 30;
  /// What a block can have, static memory included: the least of all cards that Weft supports (8.6,
  /// 8.9, 12.x), so that the kernels fit each of them.
  std::int64_t shared_bytes = 101376;
  int multiprocessors = 132;
  /// 90 for compute capability 9.0; and the code for which the kernels are compiled, as in
  /// WEFT_CUDA_CODE. Without code for the capability, no kernel can be launched.
  int capability = 90;
  const char* code = "sm_80;sm_90a;compute_80";

  /// cublasLtMatmul calls it first, with the epilogue, and fails with its result unless that is 0.
  int (*at_matmul)(std::uint32_t epilogue) = nullptr;
  /// Number of algorithms that cuBLASLt has for each product. They differ in their rounding.
  int algorithms = 5;
  /// Lists the work of all streams in the order of its submission; null: no list.
  std::vector<Command>* commands = nullptr;

  /// Milliseconds that a product takes with each algorithm, and more with an epilogue, by the clock
  /// of events.
  double product_ms[8] = {};
  double epilogue_ms = 0;
};
extern Control control;

/// A call of the emulated NCCL.
struct NcclCall {
  const char* name;     ///< "ncclAllReduce"; for a group the name of its first call
  int device;           ///< of the calling rank
  int rank, size;       ///< in the communicator
  std::int64_t number;  ///< index among the calls of this communicator on this rank; -1: connects
  std::int64_t bytes;   ///< that the rank gives
};
enum class NcclFault : std::uint8_t {
  none,
  hang,   ///< the rank's kernel does not run on until it is aborted; when connecting, it never ends
  error,  ///< the same, and the communicator reports an error of the network
  stuck,  ///< as hang, and an abort does not end it either
  block   ///< NCCL does not hand the kernel over to the stream
};
/// Decides what becomes of each call. Called by any thread. Null: no faults.
extern std::atomic<NcclFault (*)(const NcclCall&)> nccl_fault;
/// The version of NCCL that is emulated. Before 22800 it cannot revoke communicators.
extern std::atomic<int> nccl_version;
/// Calls of the emulated NCCL, by all ranks of this process: ncclCommInitRank and ncclCommSplit.
struct NcclCounts {
  std::atomic<int> connects{0}, splits{0};
  std::atomic<int> max_blocks{0};  ///< of the last ncclCommInitRank; 0: NCCL chooses
};
extern NcclCounts nccl_counts;

/// Number of emulated GPUs; the environment variable WEFT_EMU_DEVICES overrides it.
inline constexpr int kDevices = 2;

}  // namespace weft::emu
