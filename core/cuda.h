#pragma once
#include <cstdint>
#include <optional>

#include "weft/core/device.h"
#include "weft/core/stream_set.h"

namespace weft {

class Tensor;
struct Storage;

namespace cuda {

inline constexpr int kMaxDevices = 16;

/// Number of GPUs that this process can use. 0 without CUDA support, a driver or a device.
int device_count();
/// Throws Error naming what is missing unless `device` can be used.
void check_device(Device device);
/// Total memory of the device in bytes. Creates no context on the device.
/// Throws Error as check_device() does.
std::int64_t total_memory(Device device);
/// Waits until all work submitted to the device has finished.
void synchronize(Device device = {Device::Kind::cuda, 0});
/// How often this process has waited for a device. A steady training step adds nothing.
std::int64_t host_syncs();

/// Lets f32 matrix products round their operands to TF32 (10 mantissa bits). Off by default.
void allow_tf32(bool on);
bool tf32_allowed();
/// Forbids TF32 on this thread until the end of the scope.
class NoTf32Scope {
 public:
  NoTf32Scope();
  ~NoTf32Scope();
  NoTf32Scope(const NoTf32Scope&) = delete;

 private:
  bool previous_;
};

/// Of a stream: blocks of a kernel with high priority start before those of other kernels.
enum class Priority : std::uint8_t { normal, high };

/// A queue of work on one device; the work runs in order. A thread launches kernels on its current
/// stream. A Stream is a handle: streams live as long as the process and are reused. The first
/// stream of a device is its default stream.
class Stream {
 public:
  /// The device's default stream.
  explicit Stream(Device device = {Device::Kind::cuda, 0});
  /// Returns an unused stream, creating one if necessary.
  /// Throws Error when kMaxStreams are in use.
  static Stream take(Device device = {Device::Kind::cuda, 0}, Priority priority = Priority::normal);
  /// Returns a stream from take() so that it can be reused.
  void give_back();

  static Stream of_id(int id);
  /// The stream on which this thread launches kernels for the device.
  static Stream current(Device device = {Device::Kind::cuda, 0});

  Device device() const { return {Device::Kind::cuda, device_}; }
  int id() const { return id_; }
  /// Waits until all work submitted to the stream has finished.
  void synchronize() const;
  void* handle() const;
  bool operator==(const Stream&) const = default;

 private:
  Stream(std::int16_t device, std::int16_t id) : device_(device), id_(id) {}
  std::int16_t device_, id_;
};

/// Makes `stream` the current stream of this thread until the end of the scope.
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;

 private:
  Stream previous_;
};

/// A marker in a stream. Before the first record() nothing waits for it.
class Event {
 public:
  explicit Event(bool timing = false) : timing_(timing) {}
  ~Event();
  Event(Event&& o) noexcept;
  Event& operator=(Event&& o) noexcept;
  void record(const Stream& stream = Stream::current());
  /// Work submitted to `stream` from now on waits for the event.
  void wait(const Stream& stream) const;
  bool done() const;
  /// Waits on the host like synchronize(), but leaves an index error that a kernel reported to the
  /// next synchronize().
  void synchronize_unchecked() const;
  void synchronize() const;
  /// Milliseconds from `earlier` to this event. Both must have been created with timing, recorded
  /// and completed.
  double since(const Event& earlier) const;

 private:
  void* handle_ = nullptr;  // belongs to the device of the stream in which it was recorded
  std::int16_t device_ = -1;
  bool timing_;
};

/// Marks the tensor's memory as used by `stream` too. After it is freed, the memory is reused only
/// when the stream has finished the work submitted to it before the free.
void record_stream(const Tensor& t, const Stream& stream);

/// Copies one number from a tensor to the host asynchronously. The constructor does not wait;
/// value() waits for the copy, so reading a value long after it was requested does not block. On
/// devices other than a GPU the constructor reads the number directly.
class Readback {
 public:
  Readback() = default;
  /// `t` has one element of any floating dtype.
  explicit Readback(const Tensor& t);
  ~Readback();
  Readback(Readback&& o) noexcept;
  Readback& operator=(Readback&& o) noexcept;
  double value() const;

 private:
  double read_ = 0;
  double* pinned_ = nullptr;  // the GPU writes the number here
  std::optional<Event> written_;
};

namespace detail {

/// Makes this the current device of the thread's driver calls. Asks the driver each time which
/// device is current, because another library may have changed it.
void use_device(int index);

/// Device memory outside of the tensor cache, which is emptied if there is no other. Null if there
/// is none even then. rt::free() frees it.
void* allocate_uncached(Device device, std::int64_t bytes);

/// Error record in host memory that a kernel fills when an index is out of range. A GPU cannot
/// throw, and waiting for every check would cost one synchronisation per op. The host throws the
/// Error the next time it waits for the device; until then, kernels skip the bad index. The
/// pointers refer to host memory. Each device has its own record.
struct IndexFault {
  enum State : std::int32_t { none, being_written, complete };
  std::int32_t set;  ///< a State
  bool may_ignore;   ///< the value `ignored` is allowed too
  const char *op, *label;
  std::int64_t limit, value, ignored;
};
IndexFault* index_fault(Device device);

/// Copies values between two devices; same dtype and shape, both row-contiguous. Waits when the
/// target is the host.
void copy_across(const Tensor& from, const Tensor& to);

}  // namespace detail
}  // namespace cuda
}  // namespace weft
