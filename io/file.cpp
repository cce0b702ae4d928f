#include "weft/io/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "weft/core/error.h"
#include "weft/io/crc32c.h"

namespace weft::io {
namespace {

/// Returns false when nothing of that name exists. Any other failure is an Error: a file that is
/// temporarily unreachable must not count as missing.
bool stat_if_exists(const std::string& path, struct stat& s) {
  if (::stat(path.c_str(), &s) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR) FileError::raise("read", "open", path);
  return false;
}

PathKind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return PathKind::file;
  if (S_ISDIR(mode)) return PathKind::folder;
  return S_ISFIFO(mode) ? PathKind::pipe : PathKind::other;
}

// O_NONBLOCK: opening a pipe would wait for its other end, opening a device for its hardware.
int open_to_read(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) FileError::raise("read", "open", path);
  return fd;
}

struct Closer {
  int fd;
  ~Closer() {
    const int reason = errno;
    if (fd >= 0) ::close(fd);
    errno = reason;
  }
};

}  // namespace

FileError::FileError(const char* op, const char* verb, const std::string& path, int code)
    : Error(message("{}: cannot {} '{}': {}", op, verb, path, std::strerror(code)), Fault::system),
      code_(code) {}

void FileError::raise(const char* op, const char* verb, const std::string& path) {
  throw FileError(op, verb, path, errno);
}

bool FileError::is_missing() const {
  return code_ == ENOENT || code_ == ENOTDIR || code_ == EISDIR;
}

std::string read_file(const std::string& path) {
  const InputFile file(path);
  std::string bytes(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, bytes.data(), file.size());
  return bytes;
}

PathKind path_kind(const std::string& path) {
  struct stat s;
  return stat_if_exists(path, s) ? kind_of(s.st_mode) : PathKind::none;
}

std::string read_pipe(const std::string& path, const PipeLimits& limits) {
  using Clock = std::chrono::steady_clock;
  const Closer file{open_to_read(path)};
  const Clock::time_point start = Clock::now();
  std::string bytes;
  bool has_writer = false;
  std::vector<char> piece(1 << 16);  // the capacity of a pipe
  for (;;) {
    const ssize_t done = ::read(file.fd, piece.data(), piece.size());
    if (done > 0) {
      has_writer = true;
      check_system(static_cast<std::int64_t>(bytes.size()) + done <= limits.bytes,
                   "read: pipe '{}' must carry at most {} bytes; write a file instead", path,
                   limits.bytes);
      bytes.append(piece.data(), static_cast<std::size_t>(done));
    } else if (done == 0) {  // no writer: not yet, or no longer
      const std::chrono::duration<double> waited = Clock::now() - start;
      if (has_writer || waited.count() > limits.writer_s) return bytes;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else if (errno == EAGAIN) {
      has_writer = true;
      pollfd waiting{file.fd, POLLIN, 0};
      const int ready = ::poll(&waiting, 1, static_cast<int>(limits.silence_s * 1e3));
      check_system(ready != 0, "read: pipe '{}' must not be silent for {} s", path,
                   limits.silence_s);
      if (ready < 0 && errno != EINTR) FileError::raise("read", "read", path);
    } else if (errno != EINTR) {
      FileError::raise("read", "read", path);
    }
  }
}

bool exists(const std::string& path) {
  struct stat s;
  return stat_if_exists(path, s);
}

bool is_directory(const std::string& path) {
  struct stat s;
  return stat_if_exists(path, s) && S_ISDIR(s.st_mode);
}

std::int64_t file_size(const std::string& path) {
  struct stat s;
  if (::stat(path.c_str(), &s) != 0) FileError::raise("read", "open", path);
  return s.st_size;
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(path, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error) {
    errno = error.value();
    FileError::raise("read", "list", path);
  }
  std::sort(names.begin(), names.end());
  return names;
}

FileSummary summarize(const std::string& path) {
  const InputFile file(path);
  std::vector<char> piece(
      static_cast<std::size_t>(std::min<std::int64_t>(file.size(), std::int64_t{1} << 20)));
  std::uint32_t crc = 0;
  for (std::int64_t at = 0; at < file.size();) {
    const auto n = std::min(file.size() - at, static_cast<std::int64_t>(piece.size()));
    file.read(at, piece.data(), n);
    crc = crc32c(piece.data(), static_cast<std::size_t>(n), crc);
    at += n;
  }
  return {file.size(), crc};
}

FileSummary sample(const std::string& path) {
  constexpr std::int64_t kPieces = 64, kPiece = 16 << 10;
  const InputFile file(path);
  if (file.size() <= kPieces * kPiece) return summarize(path);
  const std::int64_t step = (file.size() - kPiece) / (kPieces - 1);
  std::vector<char> piece(kPiece);
  std::uint32_t crc = 0;
  for (std::int64_t i = 0; i < kPieces; ++i) {
    // The last piece ends with the file.
    file.read(i + 1 < kPieces ? i * step : file.size() - kPiece, piece.data(), kPiece);
    crc = crc32c(piece.data(), piece.size(), crc);
  }
  return {file.size(), crc};
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  Closer file{open_to_read(path_)};
  struct stat s;
  if (::fstat(file.fd, &s) != 0) FileError::raise("read", "open", path_);
  const PathKind kind = kind_of(s.st_mode);
  if (kind == PathKind::folder) {
    errno = EISDIR;
    FileError::raise("read", "open", path_);
  }
  check_system(kind == PathKind::file, "read: cannot open '{}': it must be a file, got a {}", path_,
               kind == PathKind::pipe ? "pipe" : "device");
  size_ = s.st_size;
  modified_s_ = s.st_mtim.tv_sec;
  modified_ns_ = s.st_mtim.tv_nsec;
  fd_ = std::exchange(file.fd, -1);
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& o) noexcept
    : path_(std::move(o.path_)),
      fd_(std::exchange(o.fd_, -1)),
      size_(o.size_),
      modified_s_(o.modified_s_),
      modified_ns_(o.modified_ns_) {}

InputFile& InputFile::operator=(InputFile&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(fd_, o.fd_);
  std::swap(size_, o.size_);
  std::swap(modified_s_, o.modified_s_);
  std::swap(modified_ns_, o.modified_ns_);
  return *this;
}

void InputFile::read(std::int64_t offset, void* data, std::int64_t bytes) const {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const auto want = static_cast<std::size_t>(std::min(bytes, std::int64_t{1} << 30));
    const ssize_t done = ::pread(fd_, next, want, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) FileError::raise("read", "read", path_);
    check_system(done > 0, "read: '{}' ends at byte {}, {} more were expected", path_, offset,
                 bytes);
    next += done;
    offset += done;
    bytes -= done;
  }
}

void InputFile::will_read(std::int64_t offset, std::int64_t bytes) const {
  // Advice: without it the read itself waits.
  [[maybe_unused]] const int ignored = ::posix_fadvise(fd_, offset, bytes, POSIX_FADV_WILLNEED);
}

bool InputFile::changed() const {
  struct stat s;
  return ::fstat(fd_, &s) != 0 || s.st_size != size_ || s.st_mtim.tv_sec != modified_s_ ||
         s.st_mtim.tv_nsec != modified_ns_;
}

}  // namespace weft::io
