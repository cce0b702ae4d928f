#include "weft/io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "weft/core/error.h"
#include "weft/io/crc32c.h"

namespace weft::io {
namespace {

[[noreturn]] void fail(const char* op, const char* verb, const std::string& path) {
  throw FileError(op, verb, path, errno);
}

/// False where there is nothing of that name. Whatever else keeps the system from telling is an
/// Error: a file that cannot be reached now must not count as one that is not there.
bool look_at(const std::string& path, struct stat& s) {
  if (::stat(path.c_str(), &s) == 0) return true;
  if (errno != ENOENT && errno != ENOTDIR) fail("read", "open", path);
  return false;
}

}  // namespace

FileError::FileError(const char* op, const char* verb, const std::string& path, int code)
    : Error(message("{}: cannot {} '{}': {}", op, verb, path, std::strerror(code)), Fault::system),
      code_(code) {}

bool FileError::is_missing() const {
  return code_ == ENOENT || code_ == ENOTDIR || code_ == EISDIR;
}

std::string read_file(const std::string& path) {
  const InputFile file(path);
  std::string bytes(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, bytes.data(), file.size());
  return bytes;
}

bool exists(const std::string& path) {
  struct stat s;
  return look_at(path, s);
}

bool is_directory(const std::string& path) {
  struct stat s;
  return look_at(path, s) && S_ISDIR(s.st_mode);
}

std::int64_t file_size(const std::string& path) {
  struct stat s;
  if (::stat(path.c_str(), &s) != 0) fail("read", "open", path);
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
    fail("read", "list", path);
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

}  // namespace weft::io
