#include "weft/io/file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "weft/core/error.h"
#include "weft/io/crc32c.h"

namespace weft::io {
namespace {

[[noreturn]] void fail(const char* op, const char* verb, const std::string& path) {
  const char* reason = std::strerror(errno);
  detail::raise(Fault::system, "{}: cannot {} '{}': {}", {op, verb, path, reason});
}

constexpr std::int64_t kNoLimit = -1;

std::int64_t disk_limit_of_environment() {
  const char* text = std::getenv("WEFT_TEST_DISK_FULL_AFTER");
  return text ? std::strtoll(text, nullptr, 10) : kNoLimit;
}

std::atomic<std::int64_t>& bytes_left() {
  static std::atomic<std::int64_t> left{disk_limit_of_environment()};
  return left;
}

std::atomic<std::int64_t> operations_left{kNoLimit};
std::atomic<bool> crash_kills{false};

/// Every change of the file system asks first. False, with errno set, after a simulated crash.
bool alive() {
  if (operations_left == kNoLimit) return true;
  if (operations_left == 0) {
    if (crash_kills) std::raise(SIGKILL);
    errno = EIO;
    return false;
  }
  --operations_left;
  return true;
}

ssize_t write_some(int fd, const void* data, std::size_t bytes) {
  if (!alive()) return -1;
  std::atomic<std::int64_t>& left = bytes_left();
  if (left != kNoLimit) {
    if (left == 0) {
      errno = ENOSPC;
      return -1;
    }
    bytes = std::min(bytes, static_cast<std::size_t>(left));
    left -= static_cast<std::int64_t>(bytes);
  }
  return ::write(fd, data, bytes);
}

void write_whole(int fd, const void* data, std::size_t bytes, const std::string& path) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    // One call takes at most 2 GiB; smaller pieces also keep a signal from waiting long.
    const ssize_t done = write_some(fd, next, std::min(bytes, std::size_t{1} << 26));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write", "write", path);
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

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

std::string read_file(const std::string& path) {
  const InputFile file(path);
  std::string bytes(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, bytes.data(), file.size());
  return bytes;
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

bool is_directory(const std::string& path) {
  struct stat s;
  return ::stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
}

std::int64_t file_size(const std::string& path) {
  struct stat s;
  if (::stat(path.c_str(), &s) != 0) fail("read", "open", path);
  return s.st_size;
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error))
    names.push_back(entry.path().filename().string());
  if (error) {
    errno = error.value();
    fail("read", "list", path);
  }
  std::sort(names.begin(), names.end());
  return names;
}

void make_directories(const std::string& path) {
  if (is_directory(path)) return;
  if (const std::string parent = parent_of(path); parent != path) make_directories(parent);
  if (!alive() || (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST))
    fail("write", "create folder", path);
  if (!is_directory(path)) {
    errno = ENOTDIR;
    fail("write", "create folder", path);
  }
}

void sync_directory(const std::string& path) {
  if (!sync_path(path)) fail("write", "sync", path);
}

void rename_synced(const std::string& from, const std::string& to) {
  if (!alive()) fail("write", "rename to", to);
  const unsigned flags = is_directory(to) ? RENAME_EXCHANGE : 0;
  long rc = ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags);
  if (rc != 0 && flags != 0 && (errno == EINVAL || errno == ENOSYS)) {
    // A file system without the exchange: the old folder moves aside for a moment.
    const std::string aside = from + ".old.tmp";
    rc = ::rename(to.c_str(), aside.c_str());
    if (rc == 0) rc = ::rename(from.c_str(), to.c_str());
    if (rc == 0) rc = ::rename(aside.c_str(), from.c_str());
  }
  if (rc != 0) fail("write", "rename to", to);
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
    fail("write", "remove", path);
  }
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

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".tmp") {
  if (alive()) fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("write", "create", path_);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (alive()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  write_whole(fd_, data, bytes, path_);
  summary_.bytes += static_cast<std::int64_t>(bytes);
  summary_.crc32c = crc32c(data, bytes, summary_.crc32c);
}

FileSummary AtomicFile::commit() {
  if (!alive() || ::fsync(fd_) != 0) fail("write", "write", path_);
  if (!alive() || ::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail("write", "rename to", path_);
  // From here on the new file is in place; the destructor must not look for the temporary one.
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
  if (fd < 0) fail("write", "open", path);
  try {
    write_whole(fd, text.data(), text.size(), path);
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) fail("read", "open", path_);
  struct stat s;
  if (::fstat(fd_, &s) != 0 || S_ISDIR(s.st_mode)) {
    if (S_ISDIR(s.st_mode)) errno = EISDIR;
    const int reason = errno;
    ::close(std::exchange(fd_, -1));
    errno = reason;
    fail("read", "open", path_);
  }
  size_ = s.st_size;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& o) noexcept
    : path_(std::move(o.path_)), fd_(std::exchange(o.fd_, -1)), size_(o.size_) {}

InputFile& InputFile::operator=(InputFile&& o) noexcept {
  std::swap(path_, o.path_);
  std::swap(fd_, o.fd_);
  std::swap(size_, o.size_);
  return *this;
}

void InputFile::read(std::int64_t offset, void* data, std::int64_t bytes) const {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const auto want = static_cast<std::size_t>(std::min(bytes, std::int64_t{1} << 30));
    const ssize_t done = ::pread(fd_, next, want, offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("read", "read", path_);
    check_system(done > 0, "read: '{}' ends at byte {}, {} more were expected", path_, offset,
                 bytes);
    next += done;
    offset += done;
    bytes -= done;
  }
}

MappedFile::MappedFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("read", "open", path);
  struct stat s;
  void* memory = nullptr;
  bool ok = ::fstat(fd, &s) == 0;
  if (ok && s.st_size > 0) {  // an empty map is not allowed, and not needed
    memory = ::mmap(nullptr, static_cast<std::size_t>(s.st_size), PROT_READ, MAP_SHARED, fd, 0);
    ok = memory != MAP_FAILED;
  }
  const int reason = errno;
  ::close(fd);
  errno = reason;
  if (!ok) fail("read", "map", path);
  data_ = static_cast<std::byte*>(memory);
  size_ = s.st_size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(size_));
}

void testing::fail_writes_after(std::int64_t bytes) { bytes_left() = bytes; }
void testing::crash_after(std::int64_t operations) {
  crash_kills = false;
  operations_left = operations;
}
void testing::kill_after(std::int64_t operations) {
  crash_kills = true;
  operations_left = operations;
}

}  // namespace weft::io
