// The seam to the CUDA runtime. libcudart is linked statically and opens the driver at its first
// call, so a program starts, and trains on the CPU, on a machine without a driver.
#include <cuda_runtime.h>

#include <map>
#include <utility>

#include "weft/core/allocator.h"
#include "weft/core/cuda.h"
#include "weft/core/error.h"
#include "weft/core/kernel_timer.h"
#include "weft/core/kernels/cuda_runtime.h"
#include "weft/cuda/launch.h"

namespace weft::cuda {
namespace {

void ok(cudaError_t status, const char* what) {
  if (status == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // else the next call would report it again
  check_system(false, "cuda: {} failed: {} ({})", what, cudaGetErrorString(status),
               cudaGetErrorName(status));
}

// Whether there was memory. Throws Error if anything else failed.
bool memory_ok(cudaError_t status, const char* what) {
  if (status != cudaErrorMemoryAllocation) {
    ok(status, what);
    return true;
  }
  cudaGetLastError();
  return false;
}

cudaStream_t stream_of(rt::StreamHandle s) { return static_cast<cudaStream_t>(s); }
cudaEvent_t event_of(rt::EventHandle e) { return static_cast<cudaEvent_t>(e); }

// The same for a call that needs the code of a kernel, which the driver loads, or compiles from
// PTX, at its first use. The tensor cache may hold the memory for it.
template <class Call>
void with_code(int device, const char* what, Call call) {
  cudaError_t status = call();
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    release_cached_memory({Device::Kind::cuda, static_cast<std::int16_t>(device)});
    status = call();
  }
  switch (status) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
      cudaGetLastError();
      refuse_code(device, cudaGetErrorString(status));
    default:
      ok(status, what);
  }
}

// Raises the limit of a kernel's dynamic shared memory from 48 KiB, static memory included, to what
// the device has. Every thread sets the same value, so none lowers it before another's launch.
// Returns the new limit.
int raise_shared_memory(const void* kernel, int device) {
  int most = 0;
  ok(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
     "cudaDeviceGetAttribute");
  cudaFuncAttributes found{};
  with_code(device, "cudaFuncGetAttributes", [&] { return cudaFuncGetAttributes(&found, kernel); });
  most -= static_cast<int>(found.sharedSizeBytes);
  ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
     "cudaFuncSetAttribute");
  return most;
}

void allow_shared_memory(const void* kernel, int device, std::size_t asked) {
  thread_local std::map<std::pair<const void*, int>, int> raised;
  auto it = raised.find({kernel, device});
  if (it == raised.end())
    it = raised.emplace(std::pair{kernel, device}, raise_shared_memory(kernel, device)).first;
  if (asked > static_cast<std::size_t>(it->second)) refuse_shared_memory(device, it->second, asked);
}

}  // namespace

namespace detail {

void launch(const void* kernel, dim3 grid, dim3 block, void** args, std::size_t shared) {
  weft::detail::count_launch();
  const Stream stream =
      Stream::current({Device::Kind::cuda, static_cast<std::int16_t>(rt::current_device())});
  const int device = stream.device().index;
  if (shared > 0) allow_shared_memory(kernel, device, shared);
  with_code(device, "cudaLaunchKernel", [&] {
    return cudaLaunchKernel(kernel, grid, block, args, shared, stream_of(stream.handle()));
  });
}

}  // namespace detail

namespace rt {

int device_count(std::string& why) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  if (status == cudaErrorInsufficientDriver)
    why = "the machine has no NVIDIA driver for this build's CUDA";
  else if (status == cudaErrorNoDevice || status == cudaSuccess)
    why = "the machine has no GPU";
  else
    why = message("the driver says: {}", cudaGetErrorString(status));
  return 0;
}
void set_device(int index) { ok(cudaSetDevice(index), "cudaSetDevice"); }
int current_device() {
  int index = 0;
  ok(cudaGetDevice(&index), "cudaGetDevice");
  return index;
}
namespace {
cudaDeviceProp properties_of(int index) {
  cudaDeviceProp properties;
  ok(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  return properties;
}
}  // namespace
std::string device_name(int index) { return properties_of(index).name; }
int multiprocessors(int index) {
  int count = 0;
  ok(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, index),
     "cudaDeviceGetAttribute");
  return count;
}
int compute_capability(int index) {
  int major = 0, minor = 0;
  ok(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index),
     "cudaDeviceGetAttribute");
  ok(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index),
     "cudaDeviceGetAttribute");
  return 10 * major + minor;
}
std::string compiled_code() { return WEFT_CUDA_CODE; }
std::int64_t total_memory(int index) {
  return static_cast<std::int64_t>(properties_of(index).totalGlobalMem);
}
std::string unique_id(int index) {
  const cudaUUID_t id = properties_of(index).uuid;
  return {id.bytes, id.bytes + sizeof id.bytes};
}
std::string pci_address(int index) {
  char text[32] = {};
  ok(cudaDeviceGetPCIBusId(text, sizeof text, index), "cudaDeviceGetPCIBusId");
  return text;
}
void memory_info(std::int64_t& free, std::int64_t& total) {
  std::size_t f = 0, t = 0;
  ok(cudaMemGetInfo(&f, &t), "cudaMemGetInfo");
  free = static_cast<std::int64_t>(f);
  total = static_cast<std::int64_t>(t);
}
void synchronize_device() { ok(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

void* allocate(std::int64_t bytes) {
  void* p = nullptr;
  return memory_ok(cudaMalloc(&p, static_cast<std::size_t>(bytes)), "cudaMalloc") ? p : nullptr;
}
void free(void* p) { ok(cudaFree(p), "cudaFree"); }
void mark_usable(void*, std::int64_t, std::int64_t, StreamHandle) {}
void* allocate_pinned(std::int64_t bytes) {
  void* p = nullptr;
  return memory_ok(cudaMallocHost(&p, static_cast<std::size_t>(bytes)), "cudaMallocHost") ? p
                                                                                          : nullptr;
}
void free_pinned(void* p) { ok(cudaFreeHost(p), "cudaFreeHost"); }

StreamHandle create_stream(bool high) {
  cudaStream_t s = nullptr;
  int least = 0, greatest = 0;
  ok(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  ok(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, high ? greatest : least),
     "cudaStreamCreate");
  return s;
}
void synchronize_stream(StreamHandle s) {
  ok(cudaStreamSynchronize(stream_of(s)), "cudaStreamSynchronize");
}

EventHandle create_event(bool timing) {
  cudaEvent_t e = nullptr;
  ok(cudaEventCreateWithFlags(&e, timing ? cudaEventDefault : cudaEventDisableTiming),
     "cudaEventCreate");
  return e;
}
void destroy_event(EventHandle e) { cudaEventDestroy(event_of(e)); }
void record_event(EventHandle e, StreamHandle s) {
  ok(cudaEventRecord(event_of(e), stream_of(s)), "cudaEventRecord");
}
bool event_done(EventHandle e) {
  const cudaError_t status = cudaEventQuery(event_of(e));
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  ok(status, "cudaEventQuery");
  return true;
}
void synchronize_event(EventHandle e) {
  ok(cudaEventSynchronize(event_of(e)), "cudaEventSynchronize");
}
void wait_event(StreamHandle s, EventHandle e) {
  ok(cudaStreamWaitEvent(stream_of(s), event_of(e), 0), "cudaStreamWaitEvent");
}
double elapsed_ms(EventHandle from, EventHandle to) {
  float ms = 0;
  ok(cudaEventElapsedTime(&ms, event_of(from), event_of(to)), "cudaEventElapsedTime");
  return static_cast<double>(ms);
}

void copy(void* to, const void* from, std::int64_t bytes, CopyKind, StreamHandle s) {
  weft::detail::count_launch();
  // With unified addressing the driver knows the kind of each pointer.
  ok(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream_of(s)),
     "cudaMemcpyAsync");
}

void begin_capture(StreamHandle s) {
  // Relaxed, since memory for the graph is allocated meanwhile. Weft itself refuses what is not
  // allowed.
  ok(cudaStreamBeginCapture(stream_of(s), cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
}
GraphHandle end_capture(StreamHandle s) {
  cudaGraph_t graph = nullptr;
  ok(cudaStreamEndCapture(stream_of(s), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t runnable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&runnable, graph, 0);
  cudaGraphDestroy(graph);
  ok(status, "cudaGraphInstantiate");
  return runnable;
}
void launch_graph(GraphHandle g, StreamHandle s) {
  ok(cudaGraphLaunch(static_cast<cudaGraphExec_t>(g), stream_of(s)), "cudaGraphLaunch");
}
void destroy_graph(GraphHandle g) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(g)); }

}  // namespace rt
}  // namespace weft::cuda
