#pragma once
#include <cstdint>
#include <string>

/// The part of the CUDA runtime that Weft uses, without CUDA's headers. Defined in cuda/runtime.cpp
/// and, for the emulated GPU, in cuda/emu/runtime.cpp. Referenced in builds with CUDA only. Every
/// function except the counts throws Error (Fault::system) with the driver's text on failure.
namespace weft::cuda::rt {

using StreamHandle = void*;
using EventHandle = void*;
using GraphHandle = void*;

enum class CopyKind : std::uint8_t { to_device, to_host, on_device, between_devices };

/// Number of GPUs that this process can use; if 0, `why` names what is missing.
int device_count(std::string& why);
/// Sets the device of this thread's next calls.
void set_device(int index);
int current_device();
std::string device_name(int index);
int multiprocessors(int index);
/// 90 for compute capability 9.0.
int compute_capability(int index);
/// What the kernels are compiled for, as in WEFT_CUDA_CODE.
std::string compiled_code();
/// A text that no other GPU has; the slices of one GPU (MIG) differ too.
std::string unique_id(int index);
/// PCI address of the GPU, which identifies it to every library of the driver.
std::string pci_address(int index);
/// Millijoules that the GPU has used since its driver was loaded. False when they are not counted.
/// Defined in cuda/nvml.cpp.
bool energy(const std::string& pci_address, std::uint64_t& millijoules);
/// Total memory of a device in bytes; creates no context on it.
std::int64_t total_memory(int index);
/// Free and total bytes of the current device.
void memory_info(std::int64_t& free, std::int64_t& total);
void synchronize_device();

/// Null when the device is out of memory.
void* allocate(std::int64_t bytes);
void free(void* p);
/// Check of the emulated GPU; does nothing on a real one. From here on in the stream, kernels may
/// use the first `bytes` of the `room` bytes at p, whose values are undefined; 0: none of them.
void mark_usable(void* p, std::int64_t bytes, std::int64_t room, StreamHandle s);
/// Host memory that the device accesses directly. Null when the system has no more to pin.
void* allocate_pinned(std::int64_t bytes);
void free_pinned(void* p);

/// `high`: kernels that wait for a multiprocessor start before those of other streams.
StreamHandle create_stream(bool high);
void synchronize_stream(StreamHandle s);
EventHandle create_event(bool timing);
void destroy_event(EventHandle e);
void record_event(EventHandle e, StreamHandle s);
bool event_done(EventHandle e);
void synchronize_event(EventHandle e);
/// Work submitted to `s` from now on waits for the event.
void wait_event(StreamHandle s, EventHandle e);
double elapsed_ms(EventHandle from, EventHandle to);

/// Copies in stream order. From pageable host memory, the values are read before it returns.
void copy(void* to, const void* from, std::int64_t bytes, CopyKind kind, StreamHandle s);

/// Work submitted to `s` between the two calls is recorded instead of executed. Until the end, no
/// thread may wait for `s` or its device, and copies must not use pageable memory, which replays
/// would read again.
void begin_capture(StreamHandle s);
GraphHandle end_capture(StreamHandle s);
void launch_graph(GraphHandle g, StreamHandle s);
void destroy_graph(GraphHandle g);

}  // namespace weft::cuda::rt
