#pragma once
#include <cstddef>
#include <cstdint>
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
  /// Throws one with errno.
  [[noreturn]] static void raise(const char* op, const char* verb, const std::string& path);
  /// There is no file of that name. Any other reason may pass: it says nothing about the file.
  bool is_missing() const;

 private:
  int code_;
};

// Files that survive a full disk, a killed process and a power cut. Every function throws FileError
// when the system refuses.

/// The whole file as bytes. Throws Error as InputFile.
std::string read_file(const std::string& path);

/// What there is at the end of a path; nobody waits for a pipe to be opened. `other` is a device or
/// a socket.
enum class PathKind : std::uint8_t { none, file, folder, pipe, other };
PathKind path_kind(const std::string& path);

/// How much a pipe may carry, and how long it may be silent: it says neither how much will come nor
/// when it ends.
struct PipeLimits {
  std::int64_t bytes = std::int64_t{1} << 30;
  double silence_s = 60;  ///< while somebody has it open for writing
  double writer_s = 0.5;  ///< until somebody has
};
/// What is written to a pipe until its writers close it; empty when nobody opens it for writing.
/// Throws Error when a limit is passed.
std::string read_pipe(const std::string& path, const PipeLimits& limits = {});

/// False only where there is nothing; a path that cannot be looked at now is an error.
bool exists(const std::string& path);
bool is_directory(const std::string& path);
std::int64_t file_size(const std::string& path);
/// Names (not paths) of the entries of a folder, sorted.
std::vector<std::string> list_directory(const std::string& path);

/// Creates the folder and its parents, and makes their names durable; one that exists is fine.
void make_directories(const std::string& path);
/// Renames within one folder, then fsyncs it. Replaces a file; when `to` is a folder that exists,
/// the two change places, so that at no time `to` is missing. Where the file system cannot do this
/// (NFS, FUSE), the old folder becomes aside_of(to) instead, and a crash may leave it there alone.
void rename_synced(const std::string& from, const std::string& to);
std::string aside_of(const std::string& path);
/// Makes the names in a folder durable.
void sync_directory(const std::string& path);
/// Makes what append_file() has written durable.
void sync_file(const std::string& path);
/// Removes a file or a folder with all it holds; nothing there is fine.
void remove_all(const std::string& path);

/// What was written: enough to notice a damaged copy later.
struct FileSummary {
  std::int64_t bytes = 0;
  std::uint32_t crc32c = 0;
  bool operator==(const FileSummary&) const = default;
};

/// Reads the file once, in pieces.
FileSummary summarize(const std::string& path);

/// A file that appears under its name whole or not at all: bytes go to `path`.tmp beside it, and
/// commit() fsyncs, renames and fsyncs the folder. Without commit() the destructor removes the
/// rest.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  FileSummary commit();

 private:
  std::string path_, temporary_;
  int fd_ = -1;
  FileSummary summary_;
};

/// AtomicFile in one call.
FileSummary write_file(const std::string& path, std::string_view text);
/// Appends with one system call, so that lines of several writers do not mix.
void append_file(const std::string& path, std::string_view text);

/// A regular file open for reading at any offset. Its size is taken once; a file that shrinks
/// meanwhile gives an Error. Anything else, as a pipe or a device, is an Error at once.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(InputFile&& o) noexcept;
  InputFile& operator=(InputFile&& o) noexcept;

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }
  void read(std::int64_t offset, void* data, std::int64_t bytes) const;
  /// Has somebody written to it or cut it since it was opened?
  bool changed() const;

 private:
  std::string path_;
  int fd_ = -1;
  std::int64_t size_ = 0;
  std::int64_t modified_s_ = 0, modified_ns_ = 0;
};

/// Test aids. The environment variable WEFT_TEST_DISK_FULL_AFTER=N, read once at the first write,
/// makes every write of this process fail with "No space left on device" after N bytes; the last
/// one that fits partly is short. It exists so that a whole program can be run against a full disk.
namespace testing {
/// The same from inside a process; negative: no limit.
void fail_writes_after(std::int64_t bytes);
/// A crash: after `operations` changes of the file system (create, write, fsync, rename, remove)
/// every further one fails with an input/output error, clean-up included. Negative: no limit.
void crash_after(std::int64_t operations);
/// Has one failed so since crash_after()?
bool crashed();
/// In the place of the one after so many changes the process gets SIGKILL. Negative: no limit.
void kill_after(std::int64_t operations);
}  // namespace testing

}  // namespace weft::io
