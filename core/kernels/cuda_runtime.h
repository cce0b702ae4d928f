#pragma once
#include <cstdint>
#include <string>

/// What Weft needs from a GPU's driver, free of CUDA's headers. Defined in cuda/runtime.cpp, and
/// once more in cuda/emu/runtime.cpp, where a GPU is imitated. Referenced in builds with CUDA only.
/// Everything but the counts throws Error (Fault::system) with the driver's words when it fails.
namespace weft::cuda::rt {

using StreamHandle = void*;
using EventHandle = void*;
using GraphHandle = void*;

enum class CopyKind : std::uint8_t { to_device, to_host, on_device, between_devices };

/// How many GPUs this process can use; when none, `why` says what is missing.
int device_count(std::string& why);
/// The device of this thread's next calls.
void set_device(int index);
int current_device();
std::string device_name(int index);
/// Where it is plugged in, by which every library of the driver knows it.
std::string pci_address(int index);
/// Millijoules that the GPU there has used since its driver was loaded. False when nobody counts
/// them. Defined in cuda/nvml.cpp.
bool energy(const std::string& pci_address, std::uint64_t& millijoules);
/// Bytes of memory that a device has; makes no context on it.
std::int64_t total_memory(int index);
/// Free and total bytes of the current device.
void memory_info(std::int64_t& free, std::int64_t& total);
void synchronize_device();

/// Null when the device has no such memory left.
void* allocate(std::int64_t bytes);
void free(void* p);
/// For the checks of the imitated GPU; on a real one nothing. From here on in the stream the first
/// `bytes` of the `room` bytes at p may be used, with undefined values; 0: none of them.
void mark_usable(void* p, std::int64_t bytes, std::int64_t room, StreamHandle s);
/// Host memory that the device reads and writes directly.
void* allocate_pinned(std::int64_t bytes);
void free_pinned(void* p);

StreamHandle create_stream();
void synchronize_stream(StreamHandle s);
EventHandle create_event(bool timing);
void destroy_event(EventHandle e);
void record_event(EventHandle e, StreamHandle s);
bool event_done(EventHandle e);
void synchronize_event(EventHandle e);
/// What `s` gets from now on waits for the event.
void wait_event(StreamHandle s, EventHandle e);
double elapsed_ms(EventHandle from, EventHandle to);

/// In the order of the stream. From pageable host memory the values are taken before it returns.
void copy(void* to, const void* from, std::int64_t bytes, CopyKind kind, StreamHandle s);

/// What `s` is given between the two is recorded, not run. Meanwhile nobody may wait for it or for
/// its device, and copies must not touch pageable memory, which replays would use again.
void begin_capture(StreamHandle s);
GraphHandle end_capture(StreamHandle s);
void launch_graph(GraphHandle g, StreamHandle s);
void destroy_graph(GraphHandle g);

}  // namespace weft::cuda::rt
