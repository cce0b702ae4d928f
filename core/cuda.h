#pragma once
#include <cstdint>
#include <optional>

#include "weft/core/device.h"

namespace weft {

class Tensor;
struct Storage;

namespace cuda {

inline constexpr int kMaxDevices = 16;
inline constexpr int kMaxStreams = 64;

/// How many GPUs this process can use: 0 in a build without CUDA, without a driver, without a
/// device.
int device_count();
/// Throws Error that says what is missing unless `device` can be used.
void check_device(Device device);
/// Bytes of the device's memory, used or not. Makes no context on the device.
/// Throws Error as check_device() does.
std::int64_t total_memory(Device device);
/// Waits until everything that was given to the device has run.
void synchronize(Device device = {Device::Kind::cuda, 0});
/// How often this process waited for a device so far. A steady training step adds nothing.
std::int64_t host_syncs();

/// May f32 matrix products round their operands to TF32 (10 bits of mantissa)? Off at the start.
void allow_tf32(bool on);
bool tf32_allowed();
/// Until the end of the scope they may not, on this thread.
class ExactProducts {
 public:
  ExactProducts();
  ~ExactProducts();
  ExactProducts(const ExactProducts&) = delete;

 private:
  bool previous_;
};

/// A queue of work on one device. Kernels of a thread go to its current stream, one after another.
/// A handle; streams live as long as the process and are reused. The first of a device is its
/// default stream.
class Stream {
 public:
  /// The device's default stream.
  explicit Stream(Device device = {Device::Kind::cuda, 0});
  /// One that no other handle has, or had and dropped.
  /// Throws Error when kMaxStreams are in use.
  static Stream take(Device device = {Device::Kind::cuda, 0});
  /// For take(): the next one may have it.
  void give_back();

  static Stream of_id(int id);
  /// The stream that this thread's kernels on the device go to.
  static Stream current(Device device = {Device::Kind::cuda, 0});

  Device device() const { return {Device::Kind::cuda, device_}; }
  int id() const { return id_; }
  /// Waits until all that the stream was given has run.
  void synchronize() const;
  void* handle() const;
  bool operator==(const Stream&) const = default;

 private:
  Stream(std::int16_t device, std::int16_t id) : device_(device), id_(id) {}
  std::int16_t device_, id_;
};

/// Kernels of this thread go to `stream` until the end of the scope.
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;

 private:
  Stream previous_;
};

/// A mark in a stream. Before the first record() there is nothing to wait for.
class Event {
 public:
  explicit Event(bool timing = false) : timing_(timing) {}
  ~Event();
  Event(Event&& o) noexcept;
  Event& operator=(Event&& o) noexcept;
  void record(const Stream& stream = Stream::current());
  /// What `stream` gets from now on waits for the mark.
  void hold(const Stream& stream) const;
  bool done() const;
  /// Like synchronize(), but an index that a kernel has reported stays for the next wait.
  void wait() const;
  void synchronize() const;
  /// Milliseconds from `earlier` to this one, both made with timing, recorded and done.
  double since(const Event& earlier) const;

 private:
  void* handle_ = nullptr;  // belongs to the device of the stream that it was recorded in
  std::int16_t device_ = -1;
  bool timing_;
};

/// Says that `stream` uses the tensor's memory too: once freed, it is reused only when the stream
/// has got past what it was given until then.
void record_stream(const Tensor& t, const Stream& stream);

/// One number on its way from a tensor to the host. Making it does not wait; only value() does, so
/// who asks late enough never stands still. On other devices than a GPU it is read at once.
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
  double* pinned_ = nullptr;  // where a GPU writes it
  std::optional<Event> written_;
};

namespace detail {

/// Makes the device the one that this thread's driver calls go to. The driver is asked each time
/// which one that is: another library may have changed it.
void use_device(int index);

/// What a kernel writes, in host memory, when an index is out of range: there is no way to throw
/// from a GPU, and waiting for every check would cost a synchronisation an op. The pointers are the
/// host's. The next time the host waits for the device, the Error is thrown. Kernels that use the
/// index meanwhile skip it. Each device has its own.
struct IndexFault {
  enum State : std::int32_t { none, being_written, complete };
  std::int32_t set;  ///< a State
  bool may_ignore;   ///< `ignored` is allowed too
  const char *op, *label;
  std::int64_t limit, value, ignored;
};
IndexFault* index_fault(Device device);

/// Copies values between two devices, same dtype and shape, both row-contiguous. Waits when the
/// host is to read them.
void copy_across(const Tensor& from, const Tensor& to);

}  // namespace detail
}  // namespace cuda
}  // namespace weft
