// The part of file.h that changes files.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "weft/core/error.h"
#include "weft/io/crc32c.h"
#include "weft/io/file.h"

namespace weft::io {
namespace {

constexpr std::int64_t kNoLimit = -1;

std::int64_t disk_limit_of_environment() {
  const char* text = std::getenv("WEFT_TEST_DISK_FULL_AFTER");
  return text ? std::strtoll(text, nullptr, 10) : kNoLimit;
}

std::atomic<std::int64_t>& bytes_left() {
  static std::atomic<std::int64_t> left{disk_limit_of_environment()};
  return left;
}

double disk_rate_of_environment() {
  const char* text = std::getenv("WEFT_TEST_DISK_BYTES_PER_S");
  return text ? std::strtod(text, nullptr) : 0;
}

std::atomic<double>& disk_rate() {
  static std::atomic<double> rate{disk_rate_of_environment()};
  return rate;
}

std::atomic<std::int64_t> operations_left{kNoLimit};
std::atomic<bool> crash_kills{false}, crash_happened{false};

/// Called before every change of the file system. Returns false, with errno set, after a simulated
/// crash.
bool alive() {
  std::int64_t left = operations_left;
  do {
    if (left == kNoLimit) return true;
    if (left == 0) {
      if (crash_kills) std::raise(SIGKILL);
      crash_happened = true;
      errno = EIO;
      return false;
    }
  } while (!operations_left.compare_exchange_weak(left, left - 1));
  return true;
}

ssize_t write_some(int fd, const void* data, std::size_t bytes) {
  if (!alive()) return -1;
  if (const double rate = disk_rate(); rate > 0) {
    bytes = std::min(bytes, static_cast<std::size_t>(1 + rate / 64));
    std::this_thread::sleep_for(std::chrono::duration<double>(static_cast<double>(bytes) / rate));
  }
  std::int64_t left = bytes_left();
  std::size_t fits = bytes;
  do {
    if (left == kNoLimit) return ::write(fd, data, bytes);
    if (left == 0) {
      errno = ENOSPC;
      return -1;
    }
    fits = std::min(bytes, static_cast<std::size_t>(left));
  } while (!bytes_left().compare_exchange_weak(left, left - static_cast<std::int64_t>(fits)));
  bytes = fits;
  return ::write(fd, data, bytes);
}

void write_whole(int fd, const void* data, std::size_t bytes, const std::string& path,
                 const std::stop_token& stop = {}) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    check_system(!stop.stop_requested(), "write: '{}' is no longer needed", path);
    const ssize_t done = write_some(fd, next, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) FileError::raise("write", "write", path);
    next += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

bool sync_path(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok = alive() && ::fsync(fd) == 0;
  const int reason = errno;
  ::close(fd);
  errno = reason;
  return ok;
}

void rename_path(const std::string& from, const std::string& to) {
  if (!alive() || ::rename(from.c_str(), to.c_str()) != 0)
    FileError::raise("write", "rename to", to);
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

void make_directories(const std::string& path) {
  if (is_directory(path)) return;
  const std::string parent = parent_of(path);
  if (parent != path) make_directories(parent);
  if (!alive() || (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST))
    FileError::raise("write", "create folder", path);
  if (!is_directory(path)) {
    errno = ENOTDIR;
    FileError::raise("write", "create folder", path);
  }
  // A folder in which this user may create but not list cannot be opened and thus not synced.
  if (!sync_path(parent) && errno != EACCES) FileError::raise("write", "sync", parent);
}

void sync_directory(const std::string& path) {
  if (!sync_path(path)) FileError::raise("write", "sync", path);
}

void sync_file(const std::string& path) {
  if (!sync_path(path)) FileError::raise("write", "sync", path);
  sync_directory(parent_of(path));
}

std::string aside_of(const std::string& path) { return path + ".old"; }

void rename_synced(const std::string& from, const std::string& to) {
  const bool swap = is_directory(to);
  if (!alive()) FileError::raise("write", "rename to", to);
  const unsigned flags = swap ? RENAME_EXCHANGE : 0;
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) != 0) {
    if (!swap || (errno != EINVAL && errno != ENOSYS)) FileError::raise("write", "rename to", to);
    // No exchange on this file system. The old folder keeps its other name, so that one of the
    // folders can be found whichever of the two renames reaches the disk.
    remove_all(aside_of(to));
    rename_path(to, aside_of(to));
    rename_path(from, to);
  }
  sync_directory(parent_of(to));
}

void remove_all(const std::string& path) {
  if (!exists(path)) return;
  std::error_code error;
  if (alive())
    std::filesystem::remove_all(path, error);
  else
    error.assign(errno, std::generic_category());
  if (error) {
    errno = error.value();
    FileError::raise("write", "remove", path);
  }
}

AtomicFile::AtomicFile(std::string path, std::stop_token stop)
    : path_(std::move(path)), temporary_(path_ + ".tmp"), stop_(std::move(stop)) {
  if (alive()) fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) FileError::raise("write", "create", path_);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (alive()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  constexpr std::size_t kPiece = 1 << 20;  // in the cache when its checksum is computed
  const char* next = static_cast<const char*>(data);
  for (std::size_t piece; bytes > 0; next += piece, bytes -= piece) {
    piece = std::min(bytes, kPiece);
    write_whole(fd_, next, piece, path_, stop_);
    summary_.bytes += static_cast<std::int64_t>(piece);
    summary_.crc32c = crc32c(next, piece, summary_.crc32c);
  }
}

FileSummary AtomicFile::commit() {
  if (!alive() || ::fsync(fd_) != 0) FileError::raise("write", "write", path_);
  rename_path(temporary_, path_);
  // The new file is in place now; the destructor must not look for the temporary one.
  ::close(std::exchange(fd_, -1));
  sync_directory(parent_of(path_));
  return summary_;
}

FileSummary write_file(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  return file.commit();
}

void append_file(const std::string& path, std::string_view text) {
  const int fd =
      alive() ? ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
  if (fd < 0) FileError::raise("write", "open", path);
  try {
    write_whole(fd, text.data(), text.size(), path);
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
}

void testing::fail_writes_after(std::int64_t bytes) { bytes_left() = bytes; }
void testing::slow_writes(double bytes_per_s) { disk_rate() = bytes_per_s; }
void testing::crash_after(std::int64_t operations) {
  crash_kills = crash_happened = false;
  operations_left = operations;
}
bool testing::crashed() { return crash_happened; }
void testing::kill_after(std::int64_t operations) {
  crash_kills = true;
  operations_left = operations;
}

}  // namespace weft::io
