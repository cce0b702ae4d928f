#pragma once
#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/error.h"

namespace weft::io {

/// An Error (Fault::system) with the path and the system's reason: "write: cannot write '/x/y': No
/// space left on device".
class FileError : public Error {
 public:
  FileError(const char* op, const char* verb, const std::string& path, int code);
  /// Throws a FileError for errno.
  [[noreturn]] static void raise(const char* op, const char* verb, const std::string& path);
  /// True if there is no file of that name. Any other reason may be temporary and says nothing
  /// about the file.
  bool is_missing() const;

 private:
  int code_;
};

// Files that survive a full disk, a killed process and a power failure. Every function throws
// FileError when the system refuses.

/// The whole file as bytes. Throws Error as InputFile does.
std::string read_file(const std::string& path);

/// The kind of object at a path; does not open pipes, so it does not block. `other` is a device or
/// a socket.
enum class PathKind : std::uint8_t { none, file, folder, pipe, other };
PathKind path_kind(const std::string& path);

/// Limits of a pipe, which announces neither its size nor its end: how much it may carry and how
/// long it may be silent.
struct PipeLimits {
  std::int64_t bytes = std::int64_t{1} << 30;
  double silence_s = 60;  ///< while it has a writer
  double writer_s = 0.5;  ///< until a writer opens it
};
/// The bytes written to a pipe until its writers close it; empty when no writer opens it.
/// Throws Error when a limit is exceeded.
std::string read_pipe(const std::string& path, const PipeLimits& limits = {});

/// False only if nothing exists there; a path that cannot be examined is an error.
bool exists(const std::string& path);
bool is_directory(const std::string& path);
std::int64_t file_size(const std::string& path);
/// Names (not paths) of the entries of a folder, sorted.
std::vector<std::string> list_directory(const std::string& path);

/// Creates the folder and its parents and makes their names durable; existing ones are fine.
void make_directories(const std::string& path);
/// Renames within one folder, then fsyncs it. Replaces a file. If `to` is an existing folder, the
/// two are exchanged, so that `to` always exists. File systems without this operation (NFS, FUSE)
/// rename the old folder to aside_of(to) instead; a crash may then leave only that one.
void rename_synced(const std::string& from, const std::string& to);
std::string aside_of(const std::string& path);
/// Makes the names in a folder durable.
void sync_directory(const std::string& path);
/// Makes the data of append_file() durable.
void sync_file(const std::string& path);
/// Removes a file, or a folder with its contents; a missing path is fine.
void remove_all(const std::string& path);

/// Size and checksum of a written file, to detect a damaged copy later.
struct FileSummary {
  std::int64_t bytes = 0;
  std::uint32_t crc32c = 0;
  bool operator==(const FileSummary&) const = default;
};

/// Reads the file once, in pieces.
FileSummary summarize(const std::string& path);

/// The same of 64 pieces of 16 KiB, evenly spread, if the file is larger than these: tells most
/// other files from it without reading it all, but misses a change between the pieces.
FileSummary sample(const std::string& path);

/// A file that appears under its name complete or not at all: bytes go to `path`.tmp, and commit()
/// fsyncs, renames and fsyncs the folder. Without commit() the destructor removes the temporary
/// file.
class AtomicFile {
 public:
  /// write() throws Error once a stop is requested.
  explicit AtomicFile(std::string path, std::stop_token stop = {});
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  FileSummary commit();

 private:
  std::string path_, temporary_;
  std::stop_token stop_;
  int fd_ = -1;
  FileSummary summary_;
};

/// AtomicFile in one call.
FileSummary write_file(const std::string& path, std::string_view text);
/// Appends with one system call, so that the lines of several writers do not interleave.
void append_file(const std::string& path, std::string_view text);

/// A regular file open for reading at any offset. Its size is read once; reading a file that has
/// shrunk since is an Error. Opening anything else, such as a pipe or a device, is an Error.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(InputFile&& o) noexcept;
  InputFile& operator=(InputFile&& o) noexcept;

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }
  void read(std::int64_t offset, void* data, std::int64_t bytes) const;
  /// Lets the system fetch this part of the file in the background, for a read that follows.
  void will_read(std::int64_t offset, std::int64_t bytes) const;
  /// Whether the file has been written or truncated since it was opened.
  bool changed() const;

 private:
  std::string path_;
  int fd_ = -1;
  std::int64_t size_ = 0;
  std::int64_t modified_s_ = 0, modified_ns_ = 0;
};

/// Test hooks. The environment variable WEFT_TEST_DISK_FULL_AFTER=N, read once at the first write,
/// makes every write of this process fail with "No space left on device" after N bytes; the last
/// write that fits partly is short. It allows a whole program to be tested against a full disk.
/// WEFT_TEST_DISK_BYTES_PER_S=N imitates a slow disk: each file is written at that rate.
namespace testing {
/// The same for the current process; negative: no limit.
void fail_writes_after(std::int64_t bytes);
/// The same for the rate of each file; 0: as fast as the disk is.
void slow_writes(double bytes_per_s);
/// Simulates a crash: after `operations` changes of the file system (create, write, fsync, rename,
/// remove) every further one, including clean-up, fails with an input/output error. Negative: no
/// limit.
void crash_after(std::int64_t operations);
/// Whether an operation has failed this way since crash_after().
bool crashed();
/// Raises SIGKILL instead of performing the change after the given number. Negative: no limit.
void kill_after(std::int64_t operations);
}  // namespace testing

}  // namespace weft::io
