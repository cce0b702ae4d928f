#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "weft/core/storage.h"

namespace weft {

/// Memory outside of a device's own, where contents wait until they are needed again: for the CPU
/// a memory-mapped file without a name, whose pages the system writes to the disk and takes back as
/// it needs memory; for a GPU pinned host memory, copied on two streams, one for each direction.
/// What was taken once is kept for later steps. On the meta devices nothing is stored. Used by one
/// thread.
class OffloadMemory {
 public:
  /// `folder` is for the CPU only. Throws Error (Fault::user) when it is missing or the file cannot
  /// be made.
  OffloadMemory(Device device, const std::string& folder);
  ~OffloadMemory();
  OffloadMemory(const OffloadMemory&) = delete;

  struct Place;
  /// A place for as many bytes as `s` has; null when there is no room, which the first time is
  /// reported by a line in the log: the caller goes on without it.
  Place* take(std::int64_t bytes);
  void give_back(Place* p);
  Device device() const { return device_; }
  /// Memory of a place on the host; null on the meta devices.
  static void* data(Place* p);

  /// Copies the contents of `s` out. The caller may release `s` at once; on a GPU its memory is
  /// used again once the host sees that the copy has ended.
  void store(Place* p, Storage& s);
  /// Lets the GPU's current stream wait for store(). The memory of `s`, if released then, is used
  /// again at once.
  void wait_stored(Place* p, Storage& s);
  /// Starts to bring the contents back: the CPU's file is read ahead; a GPU copies them to a new
  /// block.
  void expect(Place* p, std::int64_t bytes, Category category);
  /// Gives the released `s` a block with the contents.
  void load(Place* p, Storage& s, Category category);

  /// Bytes taken so far: those of the file, or pinned.
  std::int64_t bytes() const { return bytes_; }
  /// Bytes of contents that store() and load() have moved so far.
  std::int64_t moved_bytes() const { return moved_; }

 private:
  struct File;
  struct Copies;
  bool grow(Place& p);
  void report_full(const std::string& why);

  const Device device_;
  const std::string folder_;
  std::unique_ptr<File> file_;
  std::unique_ptr<Copies> copies_;
  Place* free_ = nullptr;
  Place* all_ = nullptr;
  std::int64_t bytes_ = 0, moved_ = 0;
  bool full_ = false;
};

}  // namespace weft
